# SPDX-License-Identifier: Apache-2.0
import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from nvdra_api.ids import ClaimUID, DeviceName, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult
from nvdra_runtime.kubeletplugin import registration, sockets
from nvdra_runtime.kubeletplugin.server import KubeletStatus, serve
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.polling import wait_until

DRIVER = "gpu.nvidia.com"
ONE = ClaimRef("ml", "one", ClaimUID("11111111-0000-4000-8000-000000000001"))
TWO = ClaimRef("ml", "two", ClaimUID("22222222-0000-4000-8000-000000000002"))
SHARED = PrepareResult(
    (
        PreparedDevice(
            requests=("main",),
            pool=PoolName("node-a"),
            device=DeviceName("gpu-0"),
            cdi_ids=("k8s.gpu.nvidia.com/device=gpu-0-abc",),
            share_id="0f0f0f0f-1111-4222-8333-444444444444",
        ),
    )
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

Prepared = PrepareResult | str


class Driver:
    """Answers what the test says, and remembers how it was asked."""

    def __init__(self, answer: Callable[[ClaimRef], Prepared | None] = lambda _: SHARED) -> None:
        self.answer = answer
        self.deadline = 0.0
        self.traceparent: str | None = None
        self.entered = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.was_cancelled = asyncio.Event()

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, Prepared]:
        self.deadline, self.traceparent = deadline, traceparent
        if not claims:
            return {}
        self.entered.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        answers = {claim.uid: self.answer(claim) for claim in claims}
        return {uid: answer for uid, answer in answers.items() if answer is not None}

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        answers = {claim.uid: self.answer(claim) for claim in claims}
        return {uid: each if isinstance(each, str) else None for uid, each in answers.items()}


@asynccontextmanager
async def offered(
    root: Path, driver: Driver, *, check_s: float = 5, grace_s: float = 0.5
) -> AsyncIterator[KubeletStatus]:
    plugin_dir, registry_dir = root / "plugins" / DRIVER, root / "plugins_registry"
    async with serve(
        DRIVER, plugin_dir, registry_dir, driver, grace_s=grace_s, check_interval_s=check_s
    ) as us:
        yield us


@asynccontextmanager
async def called(root: Path, driver: Driver) -> AsyncIterator[kubelet_client.RegisteredPlugin]:
    async with offered(root, driver), kubelet_client.run_kubelet(root) as kubelet:
        yield await kubelet.wait_registered(DRIVER)


@pytest.mark.protocol("R1", "R6")
async def test_the_kubelet_learns_the_driver_its_socket_and_its_services_in_order(
    kubelet_root: Path,
) -> None:
    async with called(kubelet_root, Driver()) as plugin:
        assert plugin.endpoint == str(kubelet_root / "plugins" / DRIVER / "dra.sock")
        assert plugin.services == ("v1.DRAPlugin", "v1beta1.DRAPlugin")


async def test_the_driver_knows_that_it_is_registered(kubelet_root: Path) -> None:
    async with offered(kubelet_root, Driver()) as us:
        assert not us.is_registered
        async with kubelet_client.run_kubelet(kubelet_root) as kubelet:
            await kubelet.wait_registered(DRIVER)
            await kubelet.wait_until(lambda: us.is_registered)


@pytest.mark.protocol("R5")
async def test_a_driver_that_was_refused_offers_itself_again(kubelet_root: Path) -> None:
    async with (
        offered(kubelet_root, Driver()) as us,
        kubelet_client.run_kubelet(kubelet_root) as kubelet,
    ):
        kubelet.registration_errors[DRIVER] = ["not today"]
        await kubelet.wait_registered(DRIVER)
        await kubelet.wait_until(lambda: us.is_registered)
        assert kubelet.registrations == [(DRIVER, "not today"), (DRIVER, "")]


@pytest.mark.protocol("R2")
async def test_a_kubelet_that_starts_again_registers_the_driver_again(kubelet_root: Path) -> None:
    async with offered(kubelet_root, Driver()), kubelet_client.run_kubelet(kubelet_root) as kubelet:
        await kubelet.wait_registered(DRIVER)
        await kubelet.restart()
        plugin = await kubelet.wait_registered(DRIVER)
        assert not (await plugin.prepare([ONE]))[ONE.uid].error


async def test_registration_is_answered_while_a_prepare_is_under_way(kubelet_root: Path) -> None:
    driver = Driver()
    driver.may_answer.set()
    async with offered(kubelet_root, driver), kubelet_client.run_kubelet(kubelet_root) as kubelet:
        plugin = await kubelet.wait_registered(DRIVER)
        driver.may_answer.clear()
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(plugin.prepare([ONE]))
            await driver.entered.wait()
            async with kubelet_client.run_kubelet(kubelet_root) as another:
                await another.wait_registered(DRIVER)
            driver.may_answer.set()
        assert not slow.result()[ONE.uid].error


async def test_a_prepared_claim_is_answered_with_its_devices(kubelet_root: Path) -> None:
    async with called(kubelet_root, Driver()) as plugin:
        answers = await plugin.prepare([ONE, TWO])
        (device,) = answers[ONE.uid].devices
        assert list(device.request_names) == ["main"]
        assert (device.pool_name, device.device_name) == ("node-a", "gpu-0")
        assert list(device.cdi_device_ids) == ["k8s.gpu.nvidia.com/device=gpu-0-abc"]
        assert device.share_id == SHARED.devices[0].share_id
        assert answers[TWO.uid].devices == answers[ONE.uid].devices


async def test_v1beta1_gets_the_same_answer_without_share_ids(kubelet_root: Path) -> None:
    async with called(kubelet_root, Driver()) as plugin:
        answers = await plugin.prepare([ONE], service=registration.DRA_V1BETA1)
        (device,) = answers[ONE.uid].devices
        assert device.device_name == "gpu-0"
        assert not device.HasField("share_id")


async def test_a_device_without_share_id_is_answered_without_one(kubelet_root: Path) -> None:
    plain = PreparedDevice(("r",), PoolName("n"), DeviceName("gpu-1"), ("a/b=c",))
    async with called(kubelet_root, Driver(lambda _: PrepareResult((plain,)))) as plugin:
        (device,) = (await plugin.prepare([ONE]))[ONE.uid].devices
        assert not device.HasField("share_id")


@pytest.mark.protocol("P9")
async def test_one_claim_fails_with_its_reason_beside_one_that_is_prepared(
    kubelet_root: Path,
) -> None:
    def answer(claim: ClaimRef) -> Prepared:
        return "DeviceInUse: gpu-0 is held" if claim == TWO else SHARED

    async with called(kubelet_root, Driver(answer)) as plugin:
        answers = await plugin.prepare([ONE, TWO])
        assert not answers[ONE.uid].error
        assert answers[TWO.uid].error == "DeviceInUse: gpu-0 is held"
        assert not answers[TWO.uid].devices


@pytest.mark.protocol("P7")
async def test_a_claim_without_devices_is_prepared_too(kubelet_root: Path) -> None:
    async with called(kubelet_root, Driver(lambda _: PrepareResult(()))) as plugin:
        answer = (await plugin.prepare([ONE]))[ONE.uid]
        assert not answer.error
        assert not answer.devices


@pytest.mark.protocol("P8")
async def test_what_the_driver_says_of_a_claim_that_nobody_asked_for_is_left_out(
    kubelet_root: Path,
) -> None:
    class Talkative(Driver):
        async def prepare(
            self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
        ) -> Mapping[ClaimUID, Prepared]:
            return await super().prepare([*claims, TWO], deadline, traceparent)

    async with called(kubelet_root, Talkative()) as plugin:
        assert set(await plugin.prepare([ONE])) == {ONE.uid}


@pytest.mark.protocol("P6")
async def test_a_claim_that_the_driver_forgot_is_answered_with_an_error(kubelet_root: Path) -> None:
    async with called(kubelet_root, Driver(lambda _: None)) as plugin:
        assert (await plugin.prepare([ONE]))[ONE.uid].error.startswith("Internal: ")


async def test_a_crash_of_the_driver_is_an_answer_that_names_the_call_not_the_exception(
    kubelet_root: Path,
) -> None:
    def answer(claim: ClaimRef) -> Prepared:
        raise RuntimeError(f"secret of {claim}")

    async with called(kubelet_root, Driver(answer)) as plugin:
        error = (await plugin.prepare([ONE]))[ONE.uid].error
        assert error.startswith("Internal: ")
        assert "secret" not in error
        assert (await plugin.unprepare([ONE]))[ONE.uid].error.startswith("Internal: ")


async def test_unprepare_answers_every_claim(kubelet_root: Path) -> None:
    def answer(claim: ClaimRef) -> Prepared:
        return "ApiUnavailable: later" if claim == TWO else SHARED

    async with called(kubelet_root, Driver(answer)) as plugin:
        answers = await plugin.unprepare([ONE, TWO], service=registration.DRA_V1BETA1)
        assert {uid: each.error for uid, each in answers.items()} == {
            ONE.uid: "",
            TWO.uid: "ApiUnavailable: later",
        }


async def test_the_driver_gets_the_callers_deadline_and_trace(kubelet_root: Path) -> None:
    driver = Driver()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with called(kubelet_root, driver) as plugin:
        before = asyncio.get_running_loop().time()
        await plugin.prepare([ONE], timeout_s=17, metadata=[("traceparent", parent)])
        after = asyncio.get_running_loop().time()
        assert before + 16.5 < driver.deadline < after + 17.1
        assert driver.traceparent == parent


@pytest.mark.protocol("P10")
async def test_a_caller_that_gives_up_cancels_only_its_own_call(kubelet_root: Path) -> None:
    driver = Driver()
    async with called(kubelet_root, driver) as plugin:
        driver.may_answer.clear()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await plugin.prepare([ONE], timeout_s=0.2)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await driver.was_cancelled.wait()
        driver.may_answer.set()
        assert not (await plugin.prepare([ONE]))[ONE.uid].error


@pytest.mark.protocol("P27")
async def test_a_connection_that_idled_is_as_good_as_a_new_one(kubelet_root: Path) -> None:
    async with called(kubelet_root, Driver()) as plugin:
        options = [("grpc.client_idle_timeout_ms", 1000)]
        async with grpc.aio.insecure_channel(f"unix:{plugin.endpoint}", options) as channel:
            idling = replace(plugin, channel=channel)
            assert not (await idling.prepare([ONE]))[ONE.uid].error
            await wait_until(lambda: channel.get_state() is grpc.ChannelConnectivity.IDLE)
            assert not (await idling.prepare([ONE]))[ONE.uid].error


async def test_a_call_under_way_when_serving_ends_is_answered(kubelet_root: Path) -> None:
    driver = Driver()
    async with kubelet_client.run_kubelet(kubelet_root) as kubelet:
        async with asyncio.TaskGroup() as group, offered(kubelet_root, driver, grace_s=5):
            plugin = await kubelet.wait_registered(DRIVER)
            driver.may_answer.clear()
            call = group.create_task(plugin.prepare([ONE]))
            await driver.entered.wait()
            asyncio.get_running_loop().call_later(0.3, driver.may_answer.set)
        assert not call.result()[ONE.uid].error
        await kubelet.wait_deregistered(DRIVER)


async def test_a_client_that_never_acknowledges_the_end_does_not_delay_it(
    kubelet_root: Path,
) -> None:
    async with asyncio.timeout(20):  # without the grace period: at once
        async with offered(kubelet_root, Driver(), grace_s=60):
            path = kubelet_root / "plugins" / DRIVER / "dra.sock"
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(PREFACE + EMPTY_SETTINGS)
            await reader.readexactly(1)  # the server has accepted the connection
    writer.close()


async def test_both_sockets_are_gone_after_serving(kubelet_root: Path) -> None:
    async with offered(kubelet_root, Driver()):
        sockets = list(kubelet_root.rglob("*.sock"))
        assert len(sockets) == 2
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in sockets)
    assert not list(kubelet_root.rglob("*.sock"))


@pytest.mark.protocol("R3")
async def test_a_dead_socket_left_by_a_crash_is_replaced(kubelet_root: Path) -> None:
    path = kubelet_root / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    dead = await asyncio.start_unix_server(lambda *_: None, path)
    dead.close()
    await dead.wait_closed()
    assert path.exists()
    async with called(kubelet_root, Driver()) as plugin:
        assert not (await plugin.prepare([ONE]))[ONE.uid].error


async def test_of_sockets_only_those_are_cleared_away_that_nobody_serves_on(
    kubelet_root: Path,
) -> None:
    dead, served, file = (kubelet_root / name for name in ("dead", "served", "file"))
    file.touch()
    killed = await asyncio.start_unix_server(lambda *_: None, dead)
    killed.close()
    await killed.wait_closed()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(served))
        server.listen()
        await sockets.remove_dead((dead, served, file, kubelet_root / "missing"))
        assert {path.name for path in kubelet_root.iterdir()} == {"served", "file"}


async def test_a_second_instance_leaves_the_first_ones_sockets_alone(kubelet_root: Path) -> None:
    async with called(kubelet_root, Driver()) as plugin:
        with pytest.raises(OSError, match="another process serves here"):
            async with offered(kubelet_root, Driver()):
                pytest.fail("served beside another instance")
        assert not (await plugin.prepare([ONE]))[ONE.uid].error


async def test_a_file_in_the_way_of_a_socket_is_named(kubelet_root: Path) -> None:
    path = kubelet_root / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(OSError, match=r"not a socket is in the way.*dra\.sock"):
        async with offered(kubelet_root, Driver()):
            pytest.fail("served over a file")


GONE = (
    f"plugins/{DRIVER}/dra.sock",
    f"plugins/{DRIVER}",
    f"plugins_registry/{DRIVER}-reg.sock",
    "plugins_registry",
)


@pytest.mark.protocol("R8", "R11")
@pytest.mark.parametrize("name", GONE)
async def test_what_is_taken_away_is_made_again_and_the_kubelet_calls_as_before(
    kubelet_root: Path, name: str
) -> None:
    async with (
        offered(kubelet_root, Driver(), check_s=0.05) as us,
        kubelet_client.run_kubelet(kubelet_root) as kubelet,
    ):
        first = await kubelet.wait_registered(DRIVER)
        _remove(kubelet_root / name)
        if "registry" not in name:
            await wait_until(lambda: Path(first.endpoint).exists())
            await kubelet.restart()
        await kubelet.wait_until(lambda: len(kubelet.registrations) == 2)
        again = await kubelet.wait_registered(DRIVER)
        assert not (await again.prepare([ONE]))[ONE.uid].error
        assert not us.problem


async def test_a_call_under_way_is_answered_although_its_socket_is_taken_away(
    kubelet_root: Path,
) -> None:
    driver = Driver()
    async with (
        offered(kubelet_root, driver, check_s=0.05),
        kubelet_client.run_kubelet(kubelet_root) as kubelet,
        asyncio.TaskGroup() as group,
    ):
        plugin = await kubelet.wait_registered(DRIVER)
        driver.may_answer.clear()
        call = group.create_task(plugin.prepare([ONE]))
        await driver.entered.wait()
        socket = Path(plugin.endpoint)
        socket.unlink()
        await wait_until(socket.exists)
        driver.may_answer.set()
        assert not (await call)[ONE.uid].error


@pytest.mark.protocol("R11")
async def test_what_is_in_the_way_of_a_socket_that_was_taken_away_is_told_until_it_is_gone(
    kubelet_root: Path,
) -> None:
    async with (
        offered(kubelet_root, Driver(), check_s=0.05) as us,
        kubelet_client.run_kubelet(kubelet_root) as kubelet,
    ):
        plugin = await kubelet.wait_registered(DRIVER)
        await plugin.prepare([ONE])  # connects
        socket = Path(plugin.endpoint)
        socket.unlink()
        socket.touch()
        await wait_until(lambda: us.problem)
        assert "not a socket is in the way" in us.problem
        assert not (await plugin.prepare([ONE]))[ONE.uid].error, "over the old connection"
        socket.unlink()
        await wait_until(lambda: not us.problem)
        assert socket.is_socket()


async def test_a_successors_socket_stays_when_we_end(kubelet_root: Path) -> None:
    """grpcio alone would remove it: it unlinks the path that it once bound."""
    path = kubelet_root / "plugins" / DRIVER / "dra.sock"
    async with offered(kubelet_root, Driver(), check_s=3600):
        path.unlink()
        successor = await asyncio.start_unix_server(lambda *_: None, path)
    assert path.exists()
    successor.close()
    await successor.wait_closed()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


async def test_a_registry_that_cannot_be_looked_at_is_told_until_it_can(kubelet_root: Path) -> None:
    registry, aside = kubelet_root / "plugins_registry", kubelet_root / "aside"
    async with offered(kubelet_root, Driver(), check_s=0.05) as us:
        registry.rename(aside)
        registry.symlink_to(registry.name)
        await wait_until(lambda: us.problem)
        assert "Too many levels of symbolic links" in us.problem
        registry.unlink()
        aside.rename(registry)
        await wait_until(lambda: not us.problem)


async def test_sockets_that_cannot_be_made_at_the_start_are_made_later(kubelet_root: Path) -> None:
    registry = kubelet_root / "plugins_registry"
    registry.symlink_to(registry.name)
    async with offered(kubelet_root, Driver(), check_s=0.05) as us:
        assert us.problem
        registry.unlink()
        await wait_until(lambda: not us.problem)
        assert (registry / f"{DRIVER}-reg.sock").is_socket()
