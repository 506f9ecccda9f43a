"""Two controllers with leader election: one works, and hands over when it goes."""

import signal
import urllib.error
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import interposer
import pytest
from cd_world import World
from controller import Controller
from waiting import until

PATIENCE = (
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
)

Contending = Callable[..., AbstractContextManager[Controller]]


@pytest.fixture
def contending(world: World) -> Contending:
    def start(name: str, **more: Any) -> AbstractContextManager[Controller]:
        where = f"--leader-election-lease-lock-namespace={world.driver}"
        name_ = "--leader-election-lease-lock-name=nvdra-controller"
        flags = ("--leader-election-enabled", where, name_, *PATIENCE)
        return world.controlled(*flags, name=name, **more)

    return start


def lease_path(world: World) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{world.driver}/leases/nvdra-controller"


def lease(world: World) -> dict[str, Any]:
    return dict((world.get(lease_path(world)) or {"spec": {}})["spec"])


def take(world: World) -> None:
    """Have somebody else hold the lease; the leader may write it at the same time."""
    for _ in range(10):
        stored = world.server.call("GET", lease_path(world))
        stored["spec"]["holderIdentity"] = "somebody-else"
        try:
            world.server.call("PUT", lease_path(world), stored)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 409:
                    raise
        else:
            return
    raise AssertionError("the leader was always faster")


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


async def test_a_leader_whose_lease_is_taken_ends_and_finishes_nothing(
    world: World, contending: Contending, tmp_path: Path
) -> None:
    async with interposer.interposed(world.server, tmp_path) as proxy:
        with contending("controller-a", kubeconfig=proxy.kubeconfig) as a:
            await until(lambda: leads(world, "controller-a"))
            with proxy.spoiling(r"POST .*/daemonsets", delay_s=8, times=1) as slow:
                world.create()
                await until(lambda: slow.met)
                take(world)
                await until(lambda: a.process.poll() is not None, timeout_s=6)
            assert a.process.returncode == 0
            assert "the lease is lost" in a.log.read_text()
        assert not proxy.count(r"PUT .*/computedomains/.*/status")
        assert lease(world)["holderIdentity"] == "somebody-else"


async def test_a_stand_by_can_be_stopped(world: World, contending: Contending) -> None:
    with contending("controller-a"):
        await until(lambda: leads(world, "controller-a"))
        with contending("controller-b") as b:
            await until(b.is_ready)
            assert await b.stop() == 0
            assert leads(world, "controller-a")
