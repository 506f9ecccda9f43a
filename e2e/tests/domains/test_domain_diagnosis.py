# SPDX-License-Identifier: Apache-2.0
"""When a domain or its workload does not start, `kubectl describe` says why and what to do."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NO_TAG = "not-built"
PATIENCE_S = 15
"""After this time the plugin reports what a claim waits for; most domains form earlier."""


@pytest.fixture
def dumb(rack: Cluster) -> Iterator[None]:
    """No IMEX on one of the nodes reports READY."""
    rack.simctl("node-1", "imex", "set", "--never-ready")
    yield
    rack.simctl("node-1", "imex", "clear")


@pytest.fixture
def no_image(rack: Cluster) -> Iterator[Callable[[], str]]:
    """A function that gives new daemons an image that no node has, of the daemon's repository."""
    (container,) = compute_domains.controller_deployment(rack)["spec"]["template"]["spec"][
        "containers"
    ]
    image = next(each["value"] for each in container["env"] if each["name"] == "IMAGE_NAME")

    def becomes(name: str) -> str:
        compute_domains.set_controller_env(rack, f"IMAGE_NAME={name}")
        compute_domains.wait_leader(rack)  # until then the old leader may still create daemons
        return name

    yield lambda: becomes(f"{image.rpartition(':')[0]}:{NO_TAG}")
    becomes(image)


def test_domains_that_do_not_form_say_why_and_deleted_meanwhile_they_leave_nothing(
    rack: Cluster, team: Kubectl, dumb: None, no_image: Callable[[], str]
) -> None:
    first = Domain(rack, compute_domains.create_domain(team, "first", nodes=1))
    team.apply(
        compute_domains.channel_pod("on-1", compute_domains.template_name("first"), "node-1")
    )
    team.wait(lambda: None if first.daemons() else "none", "a daemon that does not get ready")
    absent = no_image()
    second = Domain(rack, compute_domains.create_domain(team, "second", nodes=1))
    team.apply(
        compute_domains.channel_pod("on-2", compute_domains.template_name("second"), "node-2")
    )
    wait_told(team, "computedomain", "first", "DaemonsNotReady", "INIT_GPU")
    wait_told(team, "computedomain", "second", "DaemonPodsFailing", absent)
    assert compute_domains.status(team, "second")["status"] == "NotReady"
    for pod, words in (("on-1", "INIT_GPU"), ("on-2", absent)):
        wait_told(team, "pod", pod, "DaemonNotReady", words, timeout_s=PATIENCE_S + 60)

    team.run("delete", "computedomain", "first", "second", "--wait=false")
    team.run("delete", "pod", "on-1", "on-2", "--wait=false")
    for kind, found in (("computedomain", ("first", "second")), ("pod", ("on-1", "on-2"))):
        for name in found:
            team.wait(partial(still_there, team, kind, name), f"{kind} {name} to go", 60)
    for domain in (first, second):
        domain.wait_gone()
    compute_domains.wait_released(rack)


def still_there(team: Kubectl, kind: str, name: str) -> str | None:
    return "it is" if team.exists(kind, name) else None


def test_a_workload_that_no_node_fits_is_told_so_and_its_domain_says_that_nodes_are_missing(
    rack: Cluster, team: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, "ring", nodes=1))
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("ring"), "node-9"))
    wait_told(team, "pod", "w", "FailedScheduling", "0/2 nodes are available")
    wait_told(team, "computedomain", "ring", "NodesMissing", "0 of 1 node is ready")
    assert domain.labelled_nodes() == set()
    team.delete("pod", "w")
    team.delete("computedomain", "ring")
    domain.wait_gone()


def wait_told(team: Kubectl, kind: str, name: str, *words: str, timeout_s: float = 30) -> None:
    team.wait(
        partial(compute_domains.not_described, team, name, *words, kind=kind),
        f"describe {kind} {name} to say {words}",
        timeout_s,
    )
