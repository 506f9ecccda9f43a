# SPDX-License-Identifier: Apache-2.0
"""API servers of every release that the tests know take the objects of the charts.

`kubectl apply --dry-run=server` has the API server decode, validate and admit each object as if it
was to be stored. A usual run asks the release of all other tests, a soak every one.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import FROM_REGISTRY, folder
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer

NAMESPACE = "nvdra-system"
WEBHOOK = ("webhook.enabled=true", "webhook.replicas=2")
VALUES: dict[str, tuple[str, ...]] = {
    "as it comes": (),
    "GPUs only": ("resources.computeDomains.enabled=false",),
    "ComputeDomains only": ("resources.gpus.enabled=false",),
    "with a webhook that keeps its certificates": (*WEBHOOK, "webhook.tls.mode=self-managed"),
    "with everything": (
        *WEBHOOK,
        "webhook.tls.mode=secret",
        "webhook.tls.secret.name=pair",
        "webhook.tls.secret.caBundle=Y2E=",
        "webhook.networkPolicy.enabled=true",
        "global.featureGates.AllAlpha=true",
        "global.additionalNamespaces={default}",
        "monitoring.dashboard.enabled=true",
        "nvdra-cd-plugin.deviceClasses.computeDomainAlias=true",
        "nvdra-cd-controller.controller.replicas=2",
        "nvdra-cd-controller.controller.networkPolicy.enabled=true",
        "nvdra-cd-controller.daemon.networkPolicy.enabled=true",
        "nvdra-cd-plugin.kubeletPlugin.networkPolicy.enabled=true",
        "nvdra-gpu-plugin.kubeletPlugin.networkPolicy.enabled=true",
    ),
    "with the driver of the GPU Operator": ("global.nvidiaDriverRoot=/run/nvidia/driver",),
    "with the driver of GKE": ("global.nvidiaDriverRoot=/home/kubernetes/bin/nvidia",),
    "with IMEX by the hosts": (
        "global.featureGates.HostManagedIMEXDaemon=true",
        "global.imex.mode=hostManaged",
    ),
}

EXTENDED_RESOURCES = "nvdra-gpu-plugin.deviceClasses.migExtendedResources={1g.10gb,1g.10gb+me}"


@pytest.mark.parametrize("values", VALUES)
def test_an_api_server_of_the_release_takes_every_object(
    server: ApiServer, helm: str, values: str
) -> None:
    _assert_taken(server, _rendered(server, helm, VALUES[values]))


def test_extended_resources_are_taken_or_refused_with_the_way_without_them(
    server: ApiServer, helm: str
) -> None:
    groups = server.request("GET", "/apis/resource.k8s.io")["versions"]
    if any(each["version"] == "v1" for each in groups):
        _assert_taken(server, _rendered(server, helm, (EXTENDED_RESOURCES,)))
        return
    told = _template(server, helm, (EXTENDED_RESOURCES,))
    assert told.returncode == 1
    assert "migExtendedResources needs resource.k8s.io/v1 (Kubernetes 1.34 or later)" in told.stderr
    assert "use claims of the device class mig.nvidia.com" in told.stderr


def _assert_taken(server: ApiServer, objects: list[dict[str, Any]]) -> None:
    # Pods that name an account are admitted only if it exists.
    accounts = _list([each for each in objects if each["kind"] == "ServiceAccount"])
    _kubectl(server, accounts, "apply", "-f", "-")
    told = _kubectl(server, _list(objects), "apply", "--dry-run=server", "-f", "-")
    _kubectl(server, accounts, "delete", "-f", "-")
    taken = [line for line in told.splitlines() if line.endswith("(server dry run)")]
    assert len(taken) == len(objects) > 10


def _list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def _rendered(server: ApiServer, helm: str, values: tuple[str, ...]) -> list[dict[str, Any]]:
    """What helm renders for this cluster, the test of the installation included."""
    done = _template(server, helm, values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml_documents.load_all(done.stdout) if each]


def _template(
    server: ApiServer, helm: str, values: tuple[str, ...]
) -> "subprocess.CompletedProcess[str]":
    flags = [f"--set={value}" for value in values]
    where = ["nvdra", str(folder("nvdra")), "-n", NAMESPACE, "--kubeconfig", str(server.kubeconfig)]
    return subprocess.run(
        [helm, "template", *where, "--validate", FROM_REGISTRY, *flags],
        capture_output=True,
        text=True,
        check=False,
    )


def _kubectl(server: ApiServer, given: dict[str, Any], *arguments: str) -> str:
    program = Path(apiserver.program_paths("kubectl")["kubectl"])
    done = subprocess.run(
        [program, "--kubeconfig", server.kubeconfig, *arguments],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
