# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains alone, installed by the umbrella chart where the CRDs exist already."""

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import FROM_REGISTRY
from nvdra_testing.control_plane import foreign_definitions

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

FOREIGN = (foreign_definitions.computedomains(), foreign_definitions.computedomaincliques())
DOMAINS_ALONE = "--set=resources.gpus.enabled=false"
SWITCHES = (
    "nvdra-cd-plugin.kubeletPlugin.networkPolicy.enabled=true",
    "nvdra-cd-controller.controller.networkPolicy.enabled=true",
    "nvdra-cd-controller.daemon.networkPolicy.enabled=true",
    "nvdra-cd-controller.daemon.priorityClassName=system-node-critical",
    "nvdra-cd-controller.daemon.resources.limits.memory=200Mi",
    "global.otlp.endpoint=http://collector.monitoring:4318",
)


@pytest.fixture(scope="module")
def before(serving: Callable[..., Cluster]) -> Cluster:
    """CRDs that helm does not own, as the GPU Operator's chart leaves them, and a domain."""
    cluster = serving()
    for definition in FOREIGN:
        done = cluster.kubectl("create", "-f", "-", stdin=definition)
        assert done.returncode == 0, done.stderr
        name = f"crd/{definition['metadata']['name']}"
        waited = ("wait", "--for=condition=Established", name, "--timeout=30s")
        assert cluster.kubectl(*waited).returncode == 0
    done = cluster.kubectl("create", "-f", "-", stdin=domain("old"))
    assert done.returncode == 0, done.stderr
    return cluster


@pytest.fixture(scope="module")
def installed(before: Cluster) -> Cluster:
    flags = [f"--set={each}" for each in SWITCHES]
    done = before.install("nvdra", DOMAINS_ALONE, *flags)
    assert done.returncode == 0, done.stderr
    return before


def domain(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}},
    }


def test_existing_crds_and_domains_are_left_as_they_are(installed: Cluster) -> None:
    assert installed.kubectl("get", "computedomain", "old").returncode == 0
    crd = "crd/computedomains.resource.nvidia.com"
    found = json.loads(installed.kubectl("get", crd, "-o", "json").stdout)
    assert found["metadata"].get("annotations") is None


def test_the_api_server_accepts_every_object_with_everything_enabled(installed: Cluster) -> None:
    manifest = installed.helm("get", "manifest", "nvdra", "-n", "nvdra-system").stdout
    kinds = [item["kind"] for item in yaml_documents.load_all(manifest) if item]
    assert kinds.count("NetworkPolicy") == 2
    assert kinds.count("ValidatingAdmissionPolicy") == 11
    assert "nvdra-gpu-plugin" not in manifest


def test_the_api_server_accepts_the_example_in_the_notes(installed: Cluster) -> None:
    notes = installed.helm("get", "notes", "nvdra", "-n", "nvdra-system").stdout
    assert "kubectl -n nvdra-system get pods -l app.kubernetes.io/name=nvdra-cd-controller" in notes
    assert "gpu.nvidia.com" not in notes
    _, _, rest = notes.partition("Next, create a domain and the pods that use it:\n\n")
    manifest, _, rest = rest.partition("\n\nPods of the same namespace")
    item = yaml_documents.load(textwrap.dedent(manifest))
    done = installed.kubectl("create", "--dry-run=server", "-o=json", "-f", "-", stdin=item)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["numNodes"] == 0
    assert f"kubectl describe computedomain {item['metadata']['name']}" in rest


def test_an_uninstall_keeps_crds_and_domains_for_a_new_installation(
    installed: Cluster,
) -> None:
    done = installed.helm("uninstall", "nvdra", "-n", "nvdra-system", "--ignore-not-found")
    assert done.returncode == 0, done.stderr
    assert installed.kubectl("get", "computedomain", "old").returncode == 0
    done = installed.install("nvdra", DOMAINS_ALONE)
    assert done.returncode == 0, done.stderr
    # The definitions are no release's, so that another one goes on with them.
    assert installed.helm("uninstall", "nvdra", "-n", "nvdra-system").returncode == 0
    other = (
        "install",
        "other",
        str(installed.charts / "nvdra"),
        "-n",
        "others",
        "--create-namespace",
        DOMAINS_ALONE,
        FROM_REGISTRY,
    )
    done = installed.helm(*other)
    assert done.returncode == 0, done.stderr
    assert installed.kubectl("get", "computedomain", "old").returncode == 0
