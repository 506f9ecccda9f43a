# SPDX-License-Identifier: Apache-2.0
"""How a real kubelet registers and removes drivers, which the test itself serves.

A kubelet deletes the slices of a driver half a minute after it is gone. One fixture starts this
before the tests.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from nvdra_testing.cluster import published_devices, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_prepares import FAILED, MARGIN_S, retry_until_ready, wait_event
from nvdra_testing.kubelet import fake_driver
from nvdra_testing.kubelet.fake_driver import FakeDriver

NODE = "node-1"
SOON_S = 30
"""A kubelet has found a socket within this time, even after a few errors."""

WIPE_S = 30
"""How long a kubelet waits before it deletes the slices of a driver that is gone."""

MULTIPLE_INSTANCES = (1, 33)
V1 = (1, 34)
WATCHES_CONNECTIONS = (1, 34)
NOTIFIES_AGAIN = (1, 36)
"""The first release whose kubelets do so."""

pytestmark = pytest.mark.timeout(WIPE_S + 4 * MARGIN_S, func_only=True)

Door = Callable[..., FakeDriver]


@pytest.fixture(scope="module")
def door(cluster: Cluster) -> Iterator[Door]:
    with fake_driver.fake_drivers(cluster, NODE) as make:
        yield make


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Kubectl]:
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl


@pytest.fixture(scope="module", autouse=True)
def gone(door: Door, space: Kubectl) -> Iterator[Mapping[str, Any]]:
    """The slices before their drivers left, died, never answered or came back at once."""
    names = ("leaves", "dies", "mute", "returns")
    offers = {name: door(f"{name}.example.com") for name in names}
    for offer in offers.values():
        space.apply(published_devices.resource_slice(offer.driver, NODE))
    before = {name: stored(space, offer) for name, offer in offers.items()}
    for name, offer in offers.items():
        if name != "mute":
            offer.open_dra_socket()
        offer.open_registration_socket()
        wait_verdicts(space, offer, "")
    offers["returns"].close_dra_socket()
    offers["returns"].open_dra_socket()
    offers["dies"].close_dra_socket()
    offers["leaves"].close_registration_socket()
    yield before
    for offer in offers.values():
        space.delete("resourceslice", f"{offer.driver}-{NODE}")


@pytest.mark.protocol("R4", "R5")
def test_a_driver_that_fails_to_answer_is_asked_again(
    cluster: Cluster, door: Door, space: Kubectl
) -> None:
    shy = door("shy.example.com", failing_calls={"GetInfo": 2})
    deaf = door("deaf.example.com", failing_calls={"NotifyRegistrationStatus": 1})
    for offer in (shy, deaf):
        offer.open_dra_socket()
        offer.open_registration_socket()
    wait_verdicts(space, shy, "")
    assert shy.get_info_count == 3
    wait_verdicts(space, deaf, *([""] * (2 if cluster.release >= NOTIFIES_AGAIN else 1)))


@pytest.mark.protocol("R6")
@pytest.mark.parametrize("versions", [(), ("1.0.0",)], ids=["none", "1.0.0"])
def test_a_driver_without_a_known_service_is_refused(
    cluster: Cluster, door: Door, space: Kubectl, versions: tuple[str, ...]
) -> None:
    offer = door(f"old-{len(versions)}.example.com")
    offer.versions = versions
    offer.open_registration_socket()
    space.wait(lambda: None if offer.registration_errors else "none", "a verdict", SOON_S)
    is_refused = not versions or cluster.release >= V1
    assert bool(offer.registration_errors[0]) is is_refused
    offer.close_registration_socket()


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
    offer.open_dra_socket()
    offer.open_registration_socket()
    wait_verdicts(space, offer, "")
    with pod_of(space, offer.driver):
        pass
    known = chosen if cluster.release >= V1 else "v1beta1"
    prepare, unprepare = f"{known} NodePrepareResources", f"{known} NodeUnprepareResources"
    # The kubelet's periodic sync may take the claim back again.
    assert offer.calls[:2] == [prepare, unprepare]
    assert set(offer.calls[2:]) <= {unprepare}


@pytest.mark.protocol("R7")
def test_of_two_instances_the_newer_is_called_and_then_the_older_again(
    cluster: Cluster, door: Door, space: Kubectl
) -> None:
    older = door("twins.example.com", name="twins-a")
    copy = door("twins.example.com", name="twins-b", endpoint=older.endpoint)
    newer = door("twins.example.com", name="twins-c")
    older.open_dra_socket()
    older.open_registration_socket()
    wait_verdicts(space, older, "")
    if cluster.release < MULTIPLE_INSTANCES:  # these kubelets replace the first one with the second
        newer.open_dra_socket()
        newer.open_registration_socket()
        wait_verdicts(space, newer, "")
        with pod_of(space, newer.driver):
            assert (len(older.calls), len(newer.calls)) == (0, 1)
        return
    copy.open_registration_socket()
    space.wait(lambda: None if copy.registration_errors else "none", "a verdict", SOON_S)
    assert "already registered" in copy.registration_errors[0]
    # It stays, because a kubelet up to 1.35 would remove the first registration with it.
    newer.open_dra_socket()
    newer.open_registration_socket()
    wait_verdicts(space, newer, "")
    with pod_of(space, newer.driver):
        assert (len(older.calls), len(newer.calls)) == (0, 1)
    newer.close_registration_socket()
    newer.close_dra_socket()
    taken_back = len(newer.calls)
    assert taken_back >= 2
    with pod_of(space, older.driver):
        assert (len(older.calls), len(newer.calls)) == (1, taken_back)
    assert len(older.calls) >= 2


@pytest.mark.protocol("R8", "R9")
def test_one_socket_for_both_services_will_do_and_may_come_and_go(
    door: Door, space: Kubectl
) -> None:
    offer = door("common.example.com").share_one_socket()
    for turn in range(3):
        offer.open_registration_socket()
        wait_verdicts(space, offer, *([""] * (turn + 1)))
        if turn < 2:
            offer.close_registration_socket()
    with pod_of(space, offer.driver):
        assert len(offer.calls) == 1


@pytest.mark.protocol("R10")
def test_a_service_that_comes_after_its_registration_serves_who_waits(
    door: Door, space: Kubectl
) -> None:
    offer = door("late.example.com")
    offer.open_registration_socket()
    wait_verdicts(space, offer, "")

    def come() -> None:
        wait_event(space, "late", FAILED)
        offer.open_dra_socket()

    with pod_of(space, offer.driver, meanwhile=come):
        assert len(offer.calls) == 1


@pytest.mark.protocol("S2", "S3", "S4")
def test_the_slices_of_a_driver_are_wiped_when_it_is_gone_not_when_it_is_back_at_once(
    cluster: Cluster, space: Kubectl, gone: Mapping[str, Any]
) -> None:
    watched = cluster.release >= WATCHES_CONNECTIONS
    for name in ("leaves", "dies", "mute") if watched else ("leaves",):
        path = f"{name}.example.com-{NODE}"
        space.wait(
            partial(still_there, space, path), f"slice {path} to be wiped", WIPE_S + MARGIN_S
        )
    stays = ("returns",) if watched else ("dies", "mute", "returns")
    now = {name: space.get("resourceslice", f"{name}.example.com-{NODE}") for name in stays}
    assert now == {name: gone[name] for name in stays}


def stored(space: Kubectl, offer: FakeDriver) -> Any:
    return space.get("resourceslice", f"{offer.driver}-{NODE}")


def still_there(space: Kubectl, slice_: str) -> str | None:
    return "it is there" if space.exists("resourceslice", slice_) else None


def wait_verdicts(space: Kubectl, offer: FakeDriver, *wanted: str) -> None:
    """Wait until the kubelet has reported exactly these results."""
    space.wait(
        lambda: (
            None if offer.registration_errors == list(wanted) else str(offer.registration_errors)
        ),
        f"verdicts {wanted} on {offer.name}",
        SOON_S + MARGIN_S,
    )


@contextlib.contextmanager
def pod_of(
    space: Kubectl, driver: str, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """A pod with a device of that driver runs while the block does; afterwards it is deleted."""
    name = driver.partition(".")[0]
    things = (
        published_devices.device_class(driver),
        published_devices.resource_slice(driver, NODE),
        workloads.claim(name, published_devices.device_request(driver=driver)),
        workloads.pod(name, claims=[name]),
    )
    for thing in things:
        space.apply(thing)
    try:
        meanwhile()
        retry_until_ready(space, name)
        yield
    finally:
        for thing in reversed(things):
            space.delete(thing["kind"], thing["metadata"]["name"])
