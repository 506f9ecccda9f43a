# SPDX-License-Identifier: Apache-2.0
"""Two controllers with leader election: one works, and hands over when it ends."""

import json
import signal
import urllib.error
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.faults import api_proxy
from nvdra_testing.polling import wait_until

RETRY = "--leader-election-retry-period=500ms"
PATIENT = ("--leader-election-lease-duration=120s", "--leader-election-renew-deadline=60s", RETRY)
"""A leader keeps its lease, however long the machine pauses."""
SOON_REPLACED = (
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=4s",
    RETRY,
)

Contending = Callable[..., AbstractContextManager[ControllerProcess]]


@pytest.fixture
def contending(world: DriverInstallation) -> Contending:
    def start(
        name: str, flags: Sequence[str] = (), **more: Any
    ) -> AbstractContextManager[ControllerProcess]:
        where = f"--leader-election-lease-lock-namespace={world.driver_namespace}"
        name_ = "--leader-election-lease-lock-name=nvdra-controller"
        usual = ("--leader-election-enabled", where, name_, *PATIENT)
        return world.run_controller(*usual, *flags, name=name, **more)

    return start


def lease_path(world: DriverInstallation) -> str:
    return (
        f"/apis/coordination.k8s.io/v1/namespaces/{world.driver_namespace}/leases/nvdra-controller"
    )


def lease(world: DriverInstallation) -> dict[str, Any]:
    return dict((world.get(lease_path(world)) or {"spec": {}})["spec"])


def take(world: DriverInstallation) -> None:
    """Give the lease to somebody else, although the leader may write it at the same time."""
    for _ in range(10):
        stored = world.server.request("GET", lease_path(world))
        stored["spec"]["holderIdentity"] = "somebody-else"
        try:
            world.server.request("PUT", lease_path(world), stored)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 409:
                    raise
        else:
            return
    raise AssertionError("the leader was always faster")


def knows_that_it_leads(controller: ControllerProcess) -> bool:
    """The lease in the API server has a holder before the holder has read the answer.

    A controller that is stopped in between has never led when it goes on.
    """
    try:
        found = json.loads(controller.get("/debug/status", debug=True))
    except OSError:
        return False  # its ports are not open yet
    return bool(found["leader"]["isHeld"])


def leads(world: DriverInstallation, name: str) -> bool:
    return str(lease(world).get("holderIdentity", "")).startswith(f"{name}-")


async def test_the_holder_of_the_lease_leads_and_the_other_stands_by(
    world: DriverInstallation, contending: Contending
) -> None:
    with contending("controller-a") as a:
        await wait_until(partial(knows_that_it_leads, a))
        with contending("controller-b") as b:
            await wait_until(b.is_ready)
            # A controller is ready before it has read the lease, which names the leader.
            await wait_until(lambda: "stand-by; controller-a-" in b.get("/readyz?verbose"))
            world.create_domain()
            await world.wait_children_ready()
            ready = 'nvdra_compute_domain_info{status="Ready"}'
            await wait_until(lambda: a.metric(ready) > 0)
            assert b.metric(ready) == 0
            assert leads(world, "controller-a")


async def test_a_stopping_controller_releases_the_lease_at_once(
    world: DriverInstallation, contending: Contending
) -> None:
    with contending("controller-a") as a:
        await wait_until(partial(knows_that_it_leads, a))
        with contending("controller-b") as b:
            await wait_until(b.is_ready)
            before = lease(world)["leaseTransitions"]

            assert await a.stop() == 0
            given_back = lease(world)
            await wait_until(lambda: leads(world, "controller-b"))
            assert given_back["holderIdentity"] == "" or leads(world, "controller-b")
            assert lease(world)["leaseTransitions"] == before + 1
            world.create_domain()
            await world.wait_children_ready()


async def test_a_killed_controller_is_replaced_when_its_lease_expires(
    world: DriverInstallation, contending: Contending
) -> None:
    with contending("controller-a", SOON_REPLACED) as a:
        await wait_until(partial(knows_that_it_leads, a))
        with contending("controller-b", SOON_REPLACED) as b:
            await wait_until(b.is_ready)
            world.create_domain()
            await a.stop(signal.SIGKILL)
            assert leads(world, "controller-a")

            await wait_until(lambda: leads(world, "controller-b"))
            await world.wait_children_ready()


async def test_a_container_that_is_started_again_in_its_pod_leads_at_once(
    world: DriverInstallation, contending: Contending
) -> None:
    uid = str(uuid.uuid4())
    of_the_pod = (f"--pod-uid={uid}",)
    with contending("controller-a", of_the_pod) as former:
        await wait_until(partial(knows_that_it_leads, former))
        await former.stop(signal.SIGKILL)
    with contending("controller-a", of_the_pod):
        world.create_domain()
        await world.wait_children_ready()
        assert lease(world)["holderIdentity"].startswith(f"controller-a-{uid}-")


async def test_a_controller_that_hung_ends_when_it_has_lost_its_lease(
    world: DriverInstallation, contending: Contending
) -> None:
    with contending("controller-a", SOON_REPLACED) as a:
        await wait_until(partial(knows_that_it_leads, a))
        a.process.send_signal(signal.SIGSTOP)
        with contending("controller-b", SOON_REPLACED):
            await wait_until(lambda: leads(world, "controller-b"))
            a.process.send_signal(signal.SIGCONT)
            # It ends at once; a busy machine runs it late.
            await wait_until(lambda: a.process.poll() is not None)
            assert a.process.returncode == 0
            assert "Lost the lease" in a.log.read_text()
            assert leads(world, "controller-b")


async def test_a_leader_that_loses_its_lease_ends_without_further_writes(
    world: DriverInstallation, contending: Contending, tmp_path: Path
) -> None:
    async with api_proxy.run_proxy(world.server, tmp_path) as proxy:
        with contending("controller-a", kubeconfig=proxy.kubeconfig) as a:
            await wait_until(partial(knows_that_it_leads, a))
            with proxy.inject(r"POST .*/daemonsets", delay_s=60, times=1) as slow:
                world.create_domain()
                await wait_until(lambda: slow.hits)
                take(world)
                await wait_until(lambda: a.process.poll() is not None)
            assert a.process.returncode == 0
            assert "Lost the lease" in a.log.read_text()
        assert not proxy.count(r"PUT .*/computedomains/.*/status")
        assert lease(world)["holderIdentity"] == "somebody-else"


async def test_a_standby_can_be_stopped(world: DriverInstallation, contending: Contending) -> None:
    with contending("controller-a") as a:
        await wait_until(partial(knows_that_it_leads, a))
        with contending("controller-b") as b:
            await wait_until(b.is_ready)
            assert await b.stop() == 0
            assert leads(world, "controller-a")


def readiness(controller: ControllerProcess) -> str:
    """What /readyz says, whether it is well or not; empty while the port is not open."""
    try:
        return controller.get("/readyz?verbose")
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except OSError:
        return ""


async def test_a_controller_that_cannot_read_the_lease_is_not_ready_to_take_over(
    world: DriverInstallation, contending: Contending, tmp_path: Path
) -> None:
    """A rollout would replace one that can, and then no controller would work."""
    async with api_proxy.run_proxy(world.server, tmp_path) as proxy:
        with contending("controller-a") as a:
            await wait_until(a.is_ready)
            with (
                proxy.inject("(GET|POST|PUT) .*/leases", status=403) as refusal,
                contending("controller-b", kubeconfig=proxy.kubeconfig) as b,
            ):
                await wait_until(lambda: "the lease cannot be acquired" in readiness(b))
                assert not b.is_ready()
                refusal.match = "nothing"
                await wait_until(b.is_ready)
