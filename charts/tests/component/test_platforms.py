# SPDX-License-Identifier: Apache-2.0
"""What docs/platforms.md says of platforms, on API servers that are set up as theirs.

The pods are those of the rendered DaemonSets: no controller runs here.
"""

import json
import subprocess
import urllib.error
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nvdra_lab.kubernetes import platforms
from nvdra_testing import platform_page, yaml_documents
from nvdra_testing.charts import FROM_REGISTRY, folder
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.polling import wait_until

Json = dict[str, Any]

NAMESPACE = "nvdra-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """An API server with one more admission plugin, and the namespace of the drivers."""
    file = tmp_path / "admission.yaml"
    file.write_bytes(platforms.admission_configuration(request.param))
    flags = [f"--admission-control-config-file={file}"]
    (tmp_path / "api").mkdir()
    with apiserver.run_apiserver(tmp_path / "api", flags=flags) as started:
        started.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield started


def pods(helm: str, *flags: str) -> list[Json]:
    """The pods that DaemonSets and Deployment of an installation with its defaults would create."""
    argv = [helm, "template", "nvdra", str(folder("nvdra")), "--namespace", NAMESPACE]
    argv += ["--kube-version=1.36.0", FROM_REGISTRY, *flags]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = []
    for item in yaml_documents.load_all(done.stdout):
        if item and item["kind"] in ("DaemonSet", "Deployment"):
            spec = item["spec"]["template"]["spec"]
            found.append({"metadata": {"name": item["metadata"]["name"]}, "spec": spec})
    return found


def refusal(server: ApiServer, pod: Json) -> str:
    """Why the API server does not create a pod; empty if it does."""
    try:
        server.create(PODS, pod)
    except urllib.error.HTTPError as error:
        return f"{error.code}: {json.loads(error.read())['message']}"
    return ""


# The plugins of admission see quotas and namespaces by watches of their own.
def is_admitted(server: ApiServer, pod: Json) -> bool:
    return not refusal(server, pod)


@pytest.mark.parametrize("server", [{"ResourceQuota": platforms.LIMITED_PRIORITIES}], indirect=True)
async def test_with_the_quota_of_the_page_gke_admits_the_priority_classes(
    server: ApiServer, helm: str
) -> None:
    critical = pods(helm)
    for pod in critical:
        assert "insufficient quota to match these scopes" in refusal(server, pod), pod["metadata"]
    quota = server.create(QUOTAS, platform_page.QUOTA)
    # What the quota controller does, which does not run here.
    quota["status"] = {"hard": quota["spec"]["hard"], "used": {"pods": "0"}}
    server.request("PUT", f"{QUOTAS}/{quota['metadata']['name']}/status", quota)
    for pod in critical:
        await wait_until(partial(is_admitted, server, pod))


@pytest.mark.parametrize("server", [{"ResourceQuota": platforms.LIMITED_PRIORITIES}], indirect=True)
def test_without_priority_classes_gke_needs_no_quota(server: ApiServer, helm: str) -> None:
    assert len(platform_page.INSTEAD_OF_A_QUOTA) == 3
    for pod in pods(helm, *platform_page.INSTEAD_OF_A_QUOTA):
        assert refusal(server, pod) == ""


@pytest.mark.parametrize("server", [{"PodSecurity": platforms.BASELINE}], indirect=True)
async def test_with_the_label_of_the_page_talos_admits_the_plugins(
    server: ApiServer, helm: str
) -> None:
    found = pods(helm)
    refused = {pod["metadata"]["name"]: refusal(server, pod) for pod in found}
    privileged = {name for name, message in refused.items() if message}
    assert privileged == {"nvdra-nvdra-gpu-plugin", "nvdra-nvdra-cd-plugin"}
    for name in privileged:
        assert 'violates PodSecurity "baseline:latest"' in refused[name]
    home = f"/api/v1/namespaces/{NAMESPACE}"
    labelled = server.request("GET", home)
    labelled["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
    server.request("PUT", home, labelled)
    for pod in found:
        if pod["metadata"]["name"] in privileged:
            await wait_until(partial(is_admitted, server, pod))
