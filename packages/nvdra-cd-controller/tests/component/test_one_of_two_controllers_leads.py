"""Two controllers with leader election: one works, and hands over when it goes."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from cd_world import World
from controller import Controller
from waiting import until

PATIENCE = (
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
)

Contending = Callable[[str], AbstractContextManager[Controller]]


@pytest.fixture
def contending(world: World) -> Contending:
    def start(name: str) -> AbstractContextManager[Controller]:
        where = f"--leader-election-lease-lock-namespace={world.driver}"
        name_ = "--leader-election-lease-lock-name=nvdra-controller"
        flags = ("--leader-election-enabled", where, name_, *PATIENCE)
        return world.controlled(*flags, name=name)

    return start


def lease(world: World) -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.driver}/leases/nvdra-controller"
    return dict((world.get(path) or {"spec": {}})["spec"])


def leads(world: World, name: str) -> bool:
    return str(lease(world).get("holderIdentity", "")).startswith(f"{name}-")


async def test_the_one_that_leads_is_told_by_the_lease_and_the_other_stands_by(
    world: World, contending: Contending
) -> None:
    with contending("controller-a") as a:
        await until(lambda: leads(world, "controller-a"))
        with contending("controller-b") as b:
            await until(b.is_ready)
            # Ready before its first look at the lease, which says who leads.
            await until(lambda: "stand-by; controller-a-" in b.get("/readyz?verbose"))
            world.create()
            await world.formed()
            assert a.metric('nvdra_compute_domain_info{status="Ready"}') > 0
            assert b.metric('nvdra_compute_domain_info{status="Ready"}') == 0
            assert leads(world, "controller-a")


async def test_a_controller_that_is_told_to_stop_hands_over_at_once(
    world: World, contending: Contending
) -> None:
    with contending("controller-a") as a:
        await until(lambda: leads(world, "controller-a"))
        with contending("controller-b") as b:
            await until(b.is_ready)
            before = lease(world)["leaseTransitions"]

            assert await a.stop() == 0
            given_back = lease(world)
            await until(lambda: leads(world, "controller-b"), timeout_s=2.5)
            assert given_back["holderIdentity"] == "" or leads(world, "controller-b")
            assert lease(world)["leaseTransitions"] == before + 1
            world.create()
            await world.formed()


async def test_a_controller_that_dies_is_replaced_when_its_lease_has_run_out(
    world: World, contending: Contending
) -> None:
    with contending("controller-a") as a:
        await until(lambda: leads(world, "controller-a"))
        with contending("controller-b") as b:
            await until(b.is_ready)
            world.create()
            await a.stop(signal.SIGKILL)
            assert leads(world, "controller-a")

            await until(lambda: leads(world, "controller-b"))
            await world.formed()


async def test_a_controller_that_hangs_ends_when_it_finds_its_lease_taken(
    world: World, contending: Contending
) -> None:
    with contending("controller-a") as a:
        await until(lambda: leads(world, "controller-a"))
        a.process.send_signal(signal.SIGSTOP)
        with contending("controller-b"):
            await until(lambda: leads(world, "controller-b"))
            a.process.send_signal(signal.SIGCONT)
            await until(lambda: a.process.poll() is not None)
            assert a.process.returncode == 0
            assert "the lease is lost" in a.log.read_text()
            assert leads(world, "controller-b")


async def test_a_stand_by_can_be_stopped(world: World, contending: Contending) -> None:
    with contending("controller-a"):
        await until(lambda: leads(world, "controller-a"))
        with contending("controller-b") as b:
            await until(b.is_ready)
            assert await b.stop() == 0
            assert leads(world, "controller-a")
