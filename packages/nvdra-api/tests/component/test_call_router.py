# SPDX-License-Identifier: Apache-2.0
"""Calls that an instance passes on, keeps, answers by itself or refuses, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from nvdra_api.ids import ClaimUID, DeviceName, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult
from nvdra_runtime.kubeletplugin import registration, server
from nvdra_runtime.kubeletplugin.call_router import CallRouter
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.kubelet.kubelet_client import RegisteredPlugin

ONE = ClaimRef("ml", "one", ClaimUID("11111111-0000-4000-8000-000000000001"))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Driver:
    """Prepares every claim with a device of its own name, unless it has an error to answer."""

    def __init__(self, name: str, error: str = "") -> None:
        self.name = name
        self.error = error
        self.calls: list[tuple[float, str | None]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PrepareResult | str]:
        if not claims:  # the server looks whether it is served
            return {}
        self.calls.append((deadline - asyncio.get_running_loop().time(), traceparent))
        await self.may_answer.wait()
        device = PreparedDevice(("r",), PoolName("n"), DeviceName(self.name), ("a/b=c",), "share")
        return {claim.uid: self.error or PrepareResult((device,)) for claim in claims}

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        return dict.fromkeys((claim.uid for claim in claims), self.error or None)


class Instance:
    """One instance's router and sockets."""

    def __init__(self, name: str, root: Path, find_peer: Callable[[], Path | None]) -> None:
        self.path = root / f"dra-{name}.sock"
        self.router = CallRouter(find_peer)
        self.stop = asyncio.Event()
        self.plugin: RegisteredPlugin
        self._paths = SocketPaths(str(self.path), str(root / f"{name}-reg.sock"))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with (
            aclosing(self.router),
            server.serve_on("d", self._paths, (self.router,), grace_s=0.1),
        ):
            yield

    @asynccontextmanager
    async def called(self) -> AsyncIterator[RegisteredPlugin]:
        """Serve the instance and call it, without registering it."""
        async with self.serving():
            plugin = kubelet_client.connect("d", self.path)
            try:
                yield plugin
            finally:
                await plugin.channel.close()


@pytest_asyncio.fixture
async def root() -> AsyncIterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


async def device(plugin: RegisteredPlugin, timeout_s: float = 20, **how: object) -> str:
    """The name of the device that the call is answered with, or the error."""
    answer = (await plugin.prepare([ONE], timeout_s=timeout_s, **how))[ONE.uid]  # type: ignore[arg-type]
    return answer.error or answer.devices[0].device_name


async def check_kept(*calls: asyncio.Task[str]) -> None:
    """Nobody has answered the calls, although there was time to."""
    answered, _ = await asyncio.wait(calls, timeout=0.5)
    assert not answered


async def test_a_call_is_passed_on_with_its_deadline_trace_and_version(root: Path) -> None:
    active = Instance("a", root, lambda: None)
    standby = Instance("b", root, lambda: active.path)
    driver = Driver("of-a")
    active.router.answer_with(driver)
    async with active.serving(), standby.called() as plugin:
        metadata = (("traceparent", TRACE), ("x", "y"))
        assert await device(plugin, metadata=metadata) == "of-a"
        ((remaining_s, trace),) = driver.calls
        assert 5 < remaining_s < 21  # of 20 s, and gRPC rounds up
        assert trace == TRACE
        old = (await plugin.prepare([ONE], service=registration.DRA_V1BETA1))[ONE.uid]
        new = (await plugin.prepare([ONE]))[ONE.uid]
        assert not old.devices[0].HasField("share_id")
        assert new.devices[0].share_id == "share"
        assert (await plugin.unprepare([ONE]))[ONE.uid].error == ""


async def test_a_call_is_kept_until_an_instance_is_active(root: Path) -> None:
    standby = Instance("b", root, lambda: root / "dra-gone.sock")
    async with standby.called() as plugin, asyncio.TaskGroup() as group:
        call = group.create_task(device(plugin))
        await check_kept(call)
        standby.router.answer_with(Driver("of-b"))
    assert call.result() == "of-b"


async def test_a_call_in_progress_is_sent_again_when_its_instance_ends(root: Path) -> None:
    active = Instance("a", root, lambda: None)
    standby = Instance("b", root, lambda: active.path)
    driver = Driver("of-a")
    driver.may_answer.clear()
    active.router.answer_with(driver)
    async with standby.called() as plugin, asyncio.TaskGroup() as group:
        async with active.serving():
            call = group.create_task(device(plugin))
            await check_kept(call)
        assert not call.done()
        standby.router.answer_with(Driver("of-b"))
    assert call.result() == "of-b"


async def test_an_error_of_an_instance_that_ends_just_then_is_not_the_answer(root: Path) -> None:
    active = Instance("a", root, lambda: None)
    standby = Instance("b", root, lambda: active.path)
    active.router.answer_with(Driver("of-a", "DeviceInUse: gpu-0"))
    async with standby.called() as plugin, asyncio.TaskGroup() as group:
        async with active.serving():
            call = group.create_task(device(plugin))
            await check_kept(call)
        standby.router.answer_with(Driver("of-b"))
    assert call.result() == "of-b"


async def test_an_error_of_an_instance_that_stays_is_the_answer(root: Path) -> None:
    active = Instance("a", root, lambda: None)
    standby = Instance("b", root, lambda: active.path)
    active.router.answer_with(Driver("of-a", "InvalidConfig: it is"))
    async with active.serving(), standby.called() as plugin:
        assert await device(plugin) == "InvalidConfig: it is"
        assert await device(plugin, timeout_s=1) == "InvalidConfig: it is"


@pytest.mark.parametrize("method", ["prepare", "unprepare"])
async def test_a_call_is_refused_before_its_deadline_if_nobody_is_active(
    root: Path, method: str
) -> None:
    standby = Instance("b", root, lambda: None)
    async with standby.called() as plugin:
        began = asyncio.get_running_loop().time()
        answer = (await getattr(plugin, method)([ONE], timeout_s=4))[ONE.uid]
        assert answer.error.startswith("DeadlineExceeded: ")
        assert asyncio.get_running_loop().time() - began == pytest.approx(2, abs=0.7)


async def test_two_instances_that_stand_by_do_not_send_a_call_to_and_fro(root: Path) -> None:
    first = Instance("a", root, lambda: root / "dra-b.sock")
    second = Instance("b", root, lambda: first.path)
    async with first.serving(), second.called() as plugin, asyncio.TaskGroup() as group:
        call = group.create_task(device(plugin))
        await check_kept(call)
        driver = Driver("of-a")
        first.router.answer_with(driver)
    assert call.result() == "of-a"
    assert len(driver.calls) == 1


async def test_an_instance_that_ends_leaves_its_failing_and_later_calls_to_the_next(
    root: Path,
) -> None:
    ending = Instance("a", root, lambda: None)
    following = Instance("b", root, lambda: ending.path)
    driver = Driver("of-a")
    driver.may_answer.clear()
    ending.router.answer_with(driver)
    async with (
        following.called() as passed,
        ending.called() as plugin,
        asyncio.TaskGroup() as group,
    ):
        direct = group.create_task(device(plugin))
        through = group.create_task(device(passed))
        await check_kept(direct, through)
        ending.router.stop_answering(lambda: following.path)
        driver.error = "DeviceInUse: gpu-0"
        driver.may_answer.set()
        later = group.create_task(device(plugin))
        await check_kept(direct, through, later)
        following.router.answer_with(Driver("of-b"))
    assert [call.result() for call in (direct, through, later)] == ["of-b"] * 3


async def test_an_empty_call_shows_that_a_socket_is_served(root: Path) -> None:
    standby = Instance("b", root, lambda: None)
    async with standby.called() as plugin:
        assert await plugin.prepare([], timeout_s=1) == {}
