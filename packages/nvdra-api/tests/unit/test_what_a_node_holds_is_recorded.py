"""Held claims lie in memory as they lie on the disk, whatever a driver records of its devices."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.process.clock import SystemClock
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.holdings import DeviceInUseError, HeldDevice, Holding
from nvdra_api.types.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_api.types.prepared import PreparedClaim, PreparedDevice


class HeldPort(HeldDevice):
    """A device of a driver that is not ours."""

    kind: str = "port"
    line: int

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        return (f"example.com/port={self.line}",)


class PortHolding(Holding):
    devices: tuple[HeldPort, ...]


Reports = list[tuple[dict[str, int], dict[str, int]]]


def holding(number: int, *lines: int, pods: tuple[str, ...] = ("train-0",)) -> PortHolding:
    return PortHolding(
        namespace="ml",
        name=f"claim-{number}",
        uid=ClaimUID(f"uid-{number}"),
        pods=tuple(PodUID(f"pod-uid-{name}") for name in pods),
        pod_names=pods,
        devices=tuple(
            HeldPort(
                request="port",
                pool=PoolName("node-a"),
                device=DeviceName(f"port-{line}"),
                line=line,
            )
            for line in lines
        ),
    )


@asynccontextmanager
async def opened(path: Path, reports: Reports) -> AsyncIterator[HeldClaims[PortHolding]]:
    def note(claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
        reports.append((dict(claims), dict(devices)))

    async with Store.opened(path / "state.sqlite", "boot", SystemClock()) as store:
        yield HeldClaims(store, PortHolding, note)


async def test_what_is_taken_is_held_after_a_restart_and_what_is_released_is_not(
    tmp_path: Path,
) -> None:
    first, second = holding(1, 3, 4), holding(2, 7)
    async with opened(tmp_path, []) as held:
        await held.take(first.ref, first)
        await held.take(second.ref, second)
        await held.release(first.uid)
        assert dict(held) == {second.uid: second}
    async with opened(tmp_path, reports := []) as held:
        assert dict(held) == {second.uid: second}
        assert held.since(second.uid) <= SystemClock().now()
    assert reports == [({"port": 1}, {"port": 1})]


async def test_a_claim_that_is_taken_again_counts_once(tmp_path: Path) -> None:
    async with opened(tmp_path, reports := []) as held:
        for lines in ((1, 2), (1, 2, 3)):
            await held.take(holding(1).ref, holding(1, *lines))
        assert reports[-1] == ({"port": 1}, {"port": 3})


async def test_a_record_of_another_form_is_kept_apart_until_its_claim_is_prepared_anew(
    tmp_path: Path,
) -> None:
    whole, broken = holding(1, 1), holding(2, 2)
    async with Store.opened(tmp_path / "state.sqlite", "boot", SystemClock()) as store:
        await store.put(whole.ref, "prepared", whole.model_dump_json())
        await store.put(broken.ref, "prepared", '{"namespace": "ml"}')
    async with opened(tmp_path, []) as held:
        assert dict(held) == {whole.uid: whole}
        assert held.unreadable == {broken.uid: broken.ref}
        await held.take(broken.ref, broken)
        assert held.unreadable == {}
        assert set(held) == {whole.uid, broken.uid}


async def test_who_waits_for_a_release_goes_on_with_it_and_not_before(tmp_path: Path) -> None:
    async with opened(tmp_path, []) as held, asyncio.TaskGroup() as group:
        await held.released(ClaimUID("uid-9"))  # not held: nothing to wait for
        await held.take(holding(1).ref, holding(1, 1))
        waiting = [group.create_task(held.released(ClaimUID("uid-1"))) for _ in range(2)]
        impatient = group.create_task(held.released(ClaimUID("uid-1")))
        await asyncio.sleep(0)
        impatient.cancel()
        await held.take(holding(2).ref, holding(2, 2))
        assert not any(task.done() for task in waiting)
        await held.release(ClaimUID("uid-1"))
    assert all(task.done() for task in waiting)


@given(st.lists(st.integers(0, 9), max_size=5))
def test_the_answer_names_each_device_in_the_order_of_the_record(lines: list[int]) -> None:
    assert holding(1, *lines).answer() == PreparedClaim(
        tuple(
            PreparedDevice(
                ("port",),
                PoolName("node-a"),
                DeviceName(f"port-{line}"),
                (f"example.com/port={line}",),
            )
            for line in lines
        )
    )


def test_a_device_in_use_is_refused_with_its_holder_and_at_most_three_pods() -> None:
    holder = holding(1, 4, pods=("a", "b", "c", "d"))
    wanted = ClaimRef("web", "mine", ClaimUID("uid-2"))
    refusal = DeviceInUseError(wanted, "port-4", holder, ("line-4",))
    assert refusal.message == (
        "port-4 is held by claim ml/claim-1 (UID uid-1) for pod a, b, c and 1 more"
    )
    assert refusal.facts["holder"] == str(holder.ref)
    rebuilt = holder.model_copy(update={"pod_names": ()})
    assert "for pod with UID pod-uid-a," in DeviceInUseError(wanted, "port-4", rebuilt, ()).message
    unknown = rebuilt.model_copy(update={"pods": ()})
    assert "for a pod that is not known" in DeviceInUseError(wanted, "p", unknown, ()).message
