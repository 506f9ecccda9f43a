# SPDX-License-Identifier: Apache-2.0
"""`helm uninstall` leaves what the notes and docs/operations.md say, and nothing else."""

from typing import Any

import pytest
from nvdra_testing.cluster import mps_daemons
from nvdra_testing.cluster.cluster_snapshot import ClusterSnapshot
from nvdra_testing.cluster.installation import NAMESPACE, Cluster

Installed = Any  # conftest.Installed; a conftest cannot be imported

PLUGINS, CDI = "/var/lib/kubelet/plugins", "/var/run/cdi"
KEPT_FILES = (
    # What was prepared, for the next installation; the hook, which running containers use.
    *(
        f"{PLUGINS}/gpu.nvidia.com{each}"
        for each in ("", "/instance.lock", "/nvidia-cdi-hook", "/state.sqlite")
    ),
    *(
        f"{PLUGINS}/compute-domain.nvidia.com{each}"
        for each in (
            "",
            "/clique.json",
            "/instance.lock",
            "/nvidia-cdi-hook",
            "/state.sqlite",
        )
    ),
    # By which the runtime starts a running pod's containers again.
    CDI,
    f"{CDI}/k8s.compute-domain.nvidia.com-device_base.yaml",
    f"{CDI}/k8s.gpu.nvidia.com-device_580.95.05.yaml",
)
PASSING = (f"{PLUGINS}/compute-domain.nvidia.com/domains", f"{PLUGINS}/gpu.nvidia.com/mps")
"""Where domains and MPS daemons were; what is in it stays until a plugin looks again, in ten
minutes."""

CLAIMS_GONE_S = 90
"""A prepare that is under way ends with the kubelet's call, after 45 s."""

GONE_S = 90
"""The kubelet deletes the slices of a driver half a minute after it is gone."""


@pytest.mark.timeout(300, func_only=True)
def test_helm_uninstall_leaves_the_crds_and_the_records_on_the_nodes(installed: Installed) -> None:
    cluster: Cluster = installed.cluster
    cluster.kubectl.wait(
        lambda: cluster.kubectl.run("get", "resourceclaims", "-A", "--no-headers") or None,
        "all claims to be gone, as docs/operations.md asks for",
        CLAIMS_GONE_S,
    )
    cluster.kubectl.wait(
        lambda: ", ".join(mps_daemons.deployments(cluster)) or None,
        "the Deployments of MPS daemons to be gone, a second after their claims",
    )
    cluster.uninstall()
    expected = {
        "APIService v1beta1.resource.nvidia.com",  # of the CRDs
        "CustomResourceDefinition computedomains.resource.nvidia.com",
        "CustomResourceDefinition computedomaincliques.resource.nvidia.com",
        f"Namespace {NAMESPACE}",
        f"ServiceAccount {NAMESPACE}/default",
        f"ConfigMap {NAMESPACE}/kube-root-ca.crt",
        *(f"{node}:{path}" for node in cluster.nodes() for path in KEPT_FILES),
    }

    def difference() -> str | None:
        added = ClusterSnapshot.take(cluster).added_since(installed.before)
        left = {each for each in added if not any(passing in each for passing in PASSING)}
        lines = [f"left: {each}" for each in sorted(left - expected)]
        lines += [f"missing: {each}" for each in sorted(expected - left)]
        return "\n".join(lines) or None

    cluster.kubectl.wait(difference, "what an uninstall leaves, and nothing else", GONE_S)
    assert ClusterSnapshot.take(cluster).gone_since(installed.before) == set()
