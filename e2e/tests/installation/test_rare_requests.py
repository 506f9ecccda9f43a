# SPDX-License-Identifier: Apache-2.0
"""What the components ask the API server for when something is not as it should be.

Each test shows that they may: the audit of `test_used_permissions` counts these requests.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from nvdra_api import names
from nvdra_runtime.kube import apiversions
from nvdra_testing.cluster import compute_domains, mps_daemons, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import CD_PLUGIN, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.control_plane import domain_objects

NO_MORE = "no-more-pods"
NOBODYS = "00000000-0000-4000-8000-000000000000"
PATIENCE_S = 45
"""After 15 s the ComputeDomain plugin reports what a claim waits for."""
ANOTHER_TRY_S = 160
"""The kubelet repeats a call 60 to 90 s after it has failed, and this one takes 45 s."""


@pytest.fixture
def rack(cluster: Cluster) -> Cluster:
    """The same cluster for tests of its ComputeDomains."""
    return Cluster(cluster.lab, cluster.kubectl, CD_PLUGIN)


@pytest.fixture(scope="module", autouse=True)
def no_mps(installed: Any) -> Iterator[Kubectl]:
    """A namespace with a pod whose MPS daemon cannot start, while the other tests run.

    The first attempt ends with the kubelet's call, after 45 s, and the next one follows.
    """
    cluster: Cluster = installed.cluster
    with cluster.kubectl.fresh_namespace() as pods, cluster.failing("node-2", "mps:start"):
        mps_daemons.apply_claim(pods, "shared", cluster.device("node-2", "gpu-1").uuid)
        pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
        yield pods
        pods.run("delete", "pod", "p", "--wait=false")


def wait_told(pods: Kubectl, kind: str, name: str, *words: str) -> None:
    pods.wait(
        partial(compute_domains.not_described, pods, name, *words, kind=kind),
        f"describe {kind} {name} to say {words}",
        PATIENCE_S,
    )


@pytest.mark.parametrize("driver", [names.GPU_DRIVER, names.COMPUTE_DOMAIN_DRIVER])
def test_a_slice_that_somebody_has_changed_or_added_is_put_right(
    cluster: Cluster, driver: str
) -> None:
    def slices() -> dict[str, Any]:
        found = cluster.kubectl.get("resourceslices", "", f"--field-selector=spec.driver={driver}")
        return {
            each["metadata"]["name"]: each["spec"]
            for each in found
            if each["spec"]["nodeName"] == "node-1"
        }

    before = slices()
    name = max(before, key=lambda name: len(before[name].get("devices") or []))
    change = [{"op": "remove", "path": "/spec/devices/0"}]
    cluster.kubectl.run(
        "patch", "resourceslice", name, "--type=json", f"--patch={json.dumps(change)}"
    )
    added = {
        "metadata": {"name": f"added-by-somebody-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": "node-1",
            "pool": {**before[name]["pool"], "resourceSliceCount": len(before) + 1},
            "devices": [{"name": "invented"}],
        },
    }
    version = cluster.kubectl.resource_api_version
    text = json.dumps(apiversions.slice_to_version(version, added))
    cluster.kubectl.run("create", "-f", "-", text=text)

    def difference() -> str | None:
        now = slices()
        counts = {key: len(spec.get("devices") or []) for key, spec in now.items()}
        wanted = sorted(len(spec.get("devices") or []) for spec in before.values())
        return None if sorted(counts.values()) == wanted else str(counts)

    cluster.kubectl.wait(difference, f"the slices of {driver} to be as before")


def test_a_channel_of_an_unknown_domain_is_searched_for(rack: Cluster, pods: Kubectl) -> None:
    pods.apply(compute_domains.channel_claim("c", {"domainID": NOBODYS}))
    pods.apply(workloads.pod("p", claims=["c"]))
    wait_told(pods, "pod", "p", "DomainNotFound")
    pods.run("delete", "pod", "p", "--wait=false")


def test_a_template_of_somebody_else_is_left_alone_and_reported(
    rack: Cluster, pods: Kubectl
) -> None:
    taken = compute_domains.template_name("ring")
    pods.apply(workloads.template(taken, workloads.gpus()))
    pods.apply(domain_objects.domain("ring", taken, numNodes=1))
    wait_told(pods, "computedomain", "ring", "NameTaken")
    pods.delete("computedomain", "ring")


def test_a_domain_forms_without_its_controller_and_lost_labels_come_back(
    rack: Cluster, pods: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(pods, "ring", nodes=2))
    rack.driver_namespace.wait(lambda: None if domain.objects("daemonsets") else "none", "it")
    compute_domains.scale_controller(rack, 0)
    try:
        compute_domains.run_on(pods, "ring", rack.nodes())
    finally:
        compute_domains.scale_controller(rack, 1)
    compute_domains.wait_ready(pods, "ring", 2, timeout_s=90)
    for kind in ("daemonsets", "networkpolicies", "computedomaincliques"):
        (lost,) = (each["metadata"]["name"] for each in domain.objects(kind))
        rack.driver_namespace.run("label", kind, lost, f"{names.DOMAIN_LABEL}-")
        rack.kubectl.wait(partial(unlabelled, domain, kind), f"the label of {kind} to be back")
    pods.delete("pods", "--all")
    pods.delete("computedomain", "ring")
    domain.wait_gone()


def unlabelled(domain: Domain, kind: str) -> str | None:
    return None if domain.objects(kind) else "none"


def test_a_workload_is_told_why_no_daemon_runs_for_it(rack: Cluster, pods: Kubectl) -> None:
    """On one node IMEX does not become ready; on the other one no pod may be created."""
    rack.simctl("node-1", "imex", "set", "--never-ready")
    try:
        first = Domain(rack, compute_domains.create_domain(pods, "first", nodes=1))
        pods.apply(compute_domains.channel_pod("a", "first-channel", "node-1"))
        pods.wait(lambda: None if first.daemons() else "none", "a daemon")
        with no_more_pods(rack):
            second = Domain(rack, compute_domains.create_domain(pods, "second", nodes=1))
            pods.apply(compute_domains.channel_pod("b", "second-channel", "node-2"))
            wait_told(pods, "pod", "a", "DaemonNotReady")
            wait_told(pods, "pod", "b", "DaemonNotReady", "exceeded quota")
        pods.run("delete", "computedomain", "first", "second", "--wait=false")
        pods.run("delete", "pod", "a", "b", "--wait=false")
        for domain in (first, second):
            domain.wait_gone(60)
    finally:
        rack.simctl("node-1", "imex", "clear")


@contextmanager
def no_more_pods(rack: Cluster) -> Iterator[None]:
    """A quota for the driver's namespace keeps new pods out while the block runs."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": NO_MORE},
        "spec": {"hard": {"pods": "0"}},
    }
    rack.driver_namespace.apply(quota)
    try:
        # It counts from then on.
        rack.driver_namespace.wait(
            lambda: None if rack.driver_namespace.get("quota", NO_MORE).get("status") else "none",
            "the quota to count",
        )
        yield
    finally:
        rack.driver_namespace.delete("resourcequota", NO_MORE)


def test_on_a_node_without_fabric_the_domain_itself_is_watched(
    rack: Cluster, pods: Kubectl
) -> None:
    node = "node-2"
    compute_domains.restart_with_fabric(rack, node, "--fabric-state", "not_supported")
    try:
        domain = Domain(rack, compute_domains.create_domain(pods, "ring"))
        compute_domains.run_on(pods, "ring", [node])
        pods.delete("pods", "--all")
        pods.delete("computedomain", "ring")
        domain.wait_gone()
    finally:
        compute_domains.restart_with_fabric(rack, node, "--fabric-state", "completed")


def test_the_label_of_a_domain_that_is_gone_is_taken_off(rack: Cluster) -> None:
    rack.kubectl.run("label", "node", "node-1", f"{names.DOMAIN_LABEL}={NOBODYS}")
    rack.kubectl.wait(
        lambda: (
            "it is there"
            if names.DOMAIN_LABEL in rack.kubectl.get("node", "node-1")["metadata"]["labels"]
            else None
        ),
        "the label to go",
    )


@pytest.mark.timeout(400, func_only=True)
def test_a_claim_whose_mps_daemon_cannot_start_says_why_each_time(
    cluster: Cluster, no_mps: Kubectl
) -> None:
    wait_told(no_mps, "pod", "p", "MpsNotReady")
    no_mps.wait(
        lambda: (
            None
            if compute_domains.failed_prepare_count(cluster, "node-2", "MpsNotReady") > 1
            else "none"
        ),
        "another failed prepare",
        ANOTHER_TRY_S,
    )
