# SPDX-License-Identifier: Apache-2.0
"""Every quickstart that these values serve is let in by the webhook, and its pods run.

What their containers see of the GPUs is shown by the groups `gpus`, `sharing` and `domains`.
"""

from collections.abc import Iterable

from nvdra_testing.cluster import compute_domains, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

from e2e.demo import quickstarts


def start(pods: Kubectl, cluster: Cluster, numbers: Iterable[int]) -> None:
    """Apply quickstarts by number, all at once, and wait until those that are served run."""
    whole = [each for each in cluster.devices() if each.attributes["type"] == "gpu"]
    pending = quickstarts.pending_quickstarts(whole, cluster.release)
    every = [next(quickstarts.FOLDER.glob(f"{number}-*.yaml")) for number in numbers]
    files = [file for file in every if quickstarts.is_served_by(cluster.release, file.name)]
    for file in files:
        pods.apply(file)
    for file in files:
        quickstart = quickstarts.parse(file.name, file.read_text())
        if file.name.partition("-")[0] in pending:
            for pod in quickstart.pods:
                workloads.wait_unschedulable(pods, pod)
        else:
            pods.wait_running(*quickstart.pods, timeout_s=100)


def test_the_quickstarts_with_whole_gpus(cluster: Cluster, pods: Kubectl) -> None:
    start(pods, cluster, [5, 1, 2, 3, 4, 6, 7])
    seen = {
        name: workloads.visible_gpus(pods, name).uuids
        for name in ("own-gpu-a", "own-gpu-b", "shared-claim-a", "shared-claim-b")
    }
    assert seen["own-gpu-a"] != seen["own-gpu-b"]
    assert seen["shared-claim-a"] == seen["shared-claim-b"]
    pods.delete("pods", "--all")


def test_the_quickstarts_with_parts_of_gpus_and_settings(cluster: Cluster, pods: Kubectl) -> None:
    start(pods, cluster, [9, 10, 11, 12, 15])
    if quickstarts.is_served_by(cluster.release, quickstarts.ONE_SLICE):
        assert len(workloads.visible_mig_devices(pods, "one-slice")) == 1
        assert len(workloads.visible_mig_devices(pods, "four-slices")) == 4
    pods.wait(
        lambda: None if "10240 MiB to allocate" in (text := pods.logs("mps-a")) else text or "none",
        "what its program was told",
    )
    pods.delete("pods", "--all")


def test_the_quickstart_with_a_compute_domain(cluster: Cluster, pods: Kubectl) -> None:
    start(pods, cluster, [8])
    compute_domains.wait_ready(pods, "ring", 2)
    for pod in ("ring-0", "ring-1"):
        assert compute_domains.channels(pods, pod) == {"channel0"}
    domain = Domain(cluster, compute_domains.uid_of(pods, "ring"))
    pods.delete("pod", "ring-0", "ring-1")
    pods.delete("computedomain", "ring")
    domain.wait_gone()
