"""How a real kubelet takes drivers in, and clears away after them; the test plays the drivers.

What takes long, the wiping of slices half a minute after a driver is gone, is begun by one fixture
before the tests.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import by_hand
import offering
import pytest
import workloads
from cluster import Cluster
from kubectl import Kubectl
from offering import Offer
from prepares import FAILED, SLACK_S, insist, wait_event

NODE = "node-1"
SOON_S = 30
"""Within which a kubelet has met a socket, a few refusals included."""

WIPE_S = 30
"""How long a kubelet waits before it wipes the slices of a driver that is gone."""

MULTIPLE_INSTANCES = (1, 33)
V1 = (1, 34)
WATCHES_CONNECTIONS = (1, 34)
NOTIFIES_AGAIN = (1, 36)
"""The releases whose kubelets are the first to do so."""

pytestmark = pytest.mark.timeout(WIPE_S + 4 * SLACK_S, func_only=True)

Door = Callable[..., Offer]


@pytest.fixture(scope="module")
def door(cluster: Cluster) -> Iterator[Door]:
    with offering.door(cluster, NODE) as make:
        yield make


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Kubectl]:
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl


@pytest.fixture(scope="module", autouse=True)
def gone(door: Door, space: Kubectl) -> Iterator[Mapping[str, Any]]:
    """Slices as they were before their drivers left, died, never answered or came back at once."""
    names = ("leaves", "dies", "mute", "returns")
    offers = {name: door(f"{name}.example.com") for name in names}
    for offer in offers.values():
        space.apply(by_hand.slice_of(offer.driver, NODE))
    before = {name: stored(space, offer) for name, offer in offers.items()}
    for name, offer in offers.items():
        if name != "mute":
            offer.serve()
        offer.offer()
        wait_verdicts(space, offer, "")
    offers["returns"].die()
    offers["returns"].serve()
    offers["dies"].die()
    offers["leaves"].withdraw()
    yield before
    for offer in offers.values():
        space.delete("resourceslice", f"{offer.driver}-{NODE}")


@pytest.mark.protocol("R4", "R5")
def test_a_driver_that_fails_to_answer_is_asked_again(
    cluster: Cluster, door: Door, space: Kubectl
) -> None:
    shy = door("shy.example.com", faults={"GetInfo": 2})
    deaf = door("deaf.example.com", faults={"NotifyRegistrationStatus": 1})
    for offer in (shy, deaf):
        offer.serve()
        offer.offer()
    wait_verdicts(space, shy, "")
    assert shy.asked == 3
    wait_verdicts(space, deaf, *([""] * (2 if cluster.release >= NOTIFIES_AGAIN else 1)))


@pytest.mark.protocol("R6")
@pytest.mark.parametrize("versions", [(), ("1.0.0",)], ids=["none", "1.0.0"])
def test_a_driver_without_a_known_service_is_refused(
    cluster: Cluster, door: Door, space: Kubectl, versions: tuple[str, ...]
) -> None:
    offer = door(f"old-{len(versions)}.example.com")
    offer.versions = versions
    offer.offer()
    space.wait(lambda: None if offer.verdicts else "none", "a verdict", SOON_S)
    is_refused = not versions or cluster.release >= V1
    assert bool(offer.verdicts[0]) is is_refused
    offer.withdraw()


@pytest.mark.protocol("R6", "P7")
@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (("v1beta1.DRAPlugin",), "v1beta1"),
        (("v9.DRAPlugin", "v1beta1.DRAPlugin", "v9.Weather"), "v1beta1"),
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1"),
    ],
    ids=["v1beta1", "unknown-ones-too", "both"],
)
def test_the_first_service_that_the_kubelet_knows_is_called(
    cluster: Cluster, door: Door, space: Kubectl, versions: tuple[str, ...], chosen: str
) -> None:
    offer = door(f"speaks-{len(versions)}.example.com", *versions)
    offer.serve()
    offer.offer()
    wait_verdicts(space, offer, "")
    with pod_of(space, offer.driver):
        pass
    known = chosen if cluster.release >= V1 else "v1beta1"
    assert offer.calls == [f"{known} NodePrepareResources", f"{known} NodeUnprepareResources"]


@pytest.mark.protocol("R7")
def test_of_two_instances_the_newer_is_called_and_then_the_older_again(
    cluster: Cluster, door: Door, space: Kubectl
) -> None:
    older = door("twins.example.com", name="twins-a")
    copy = door("twins.example.com", name="twins-b", endpoint=older.endpoint)
    newer = door("twins.example.com", name="twins-c")
    older.serve()
    older.offer()
    wait_verdicts(space, older, "")
    if cluster.release < MULTIPLE_INSTANCES:  # there a second one replaces the first
        newer.serve()
        newer.offer()
        wait_verdicts(space, newer, "")
        with pod_of(space, newer.driver):
            assert (len(older.calls), len(newer.calls)) == (0, 1)
        return
    copy.offer()
    space.wait(lambda: None if copy.verdicts else "none", "a verdict", SOON_S)
    assert "already registered" in copy.verdicts[0]
    # It stays: a kubelet up to 1.35 takes the original's registration away with it.
    newer.serve()
    newer.offer()
    wait_verdicts(space, newer, "")
    with pod_of(space, newer.driver):
        assert (len(older.calls), len(newer.calls)) == (0, 1)
    newer.withdraw()
    newer.die()
    with pod_of(space, older.driver):
        assert len(newer.calls) == 2
    assert len(older.calls) == 2


@pytest.mark.protocol("R8", "R9")
def test_one_socket_for_both_services_will_do_and_may_come_and_go(
    door: Door, space: Kubectl
) -> None:
    offer = door("common.example.com").share_one_socket()
    for turn in range(3):
        offer.offer()
        wait_verdicts(space, offer, *([""] * (turn + 1)))
        if turn < 2:
            offer.withdraw()
    with pod_of(space, offer.driver):
        assert len(offer.calls) == 1


@pytest.mark.protocol("R10")
def test_a_service_that_comes_after_its_registration_serves_who_waits(
    door: Door, space: Kubectl
) -> None:
    offer = door("late.example.com")
    offer.offer()
    wait_verdicts(space, offer, "")

    def come() -> None:
        wait_event(space, "late", FAILED)
        offer.serve()

    with pod_of(space, offer.driver, meanwhile=come):
        assert len(offer.calls) == 1


@pytest.mark.protocol("S2", "S3", "S4")
def test_the_slices_of_a_driver_are_wiped_when_it_is_gone_not_when_it_is_back_at_once(
    cluster: Cluster, space: Kubectl, gone: Mapping[str, Any]
) -> None:
    watched = cluster.release >= WATCHES_CONNECTIONS
    for name in ("leaves", "dies", "mute") if watched else ("leaves",):
        path = f"{name}.example.com-{NODE}"
        space.wait(partial(still_there, space, path), f"slice {path} to be wiped", WIPE_S + SLACK_S)
    stays = ("returns",) if watched else ("dies", "mute", "returns")
    now = {name: space.get("resourceslice", f"{name}.example.com-{NODE}") for name in stays}
    assert now == {name: gone[name] for name in stays}


def stored(space: Kubectl, offer: Offer) -> Any:
    return space.get("resourceslice", f"{offer.driver}-{NODE}")


def still_there(space: Kubectl, slice_: str) -> str | None:
    return "it is there" if space.exists("resourceslice", slice_) else None


def wait_verdicts(space: Kubectl, offer: Offer, *wanted: str) -> None:
    """Until the kubelet has said so, no more and no less."""
    space.wait(
        lambda: None if offer.verdicts == list(wanted) else str(offer.verdicts),
        f"verdicts {wanted} on {offer.name}",
        SOON_S + SLACK_S,
    )


@contextlib.contextmanager
def pod_of(
    space: Kubectl, driver: str, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """A pod runs with a device of that driver while the block does; afterwards all is gone."""
    name = driver.partition(".")[0]
    things = (
        by_hand.device_class(driver),
        by_hand.slice_of(driver, NODE),
        workloads.claim(name, by_hand.request(of=driver)),
        workloads.pod(name, claims=[name]),
    )
    for thing in things:
        space.apply(thing)
    try:
        meanwhile()
        insist(space, name)
        yield
    finally:
        for thing in reversed(things):
            space.delete(thing["kind"], thing["metadata"]["name"])
