# SPDX-License-Identifier: Apache-2.0
"""Persistence mode ends and a GPU is drained before it goes to vfio; both is undone afterwards."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.driver import persistenced
from nvdra_gpu_plugin.hardware.gpu_drain import ClientAccess
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_sim import incidents
from nvdra_sim.description import Fault
from nvdra_sim.pci.bus import Faults
from nvdra_sim.testing import passthrough_fixtures
from nvdra_sim.testing.passthrough_fixtures import ServedNode
from nvdra_testing.node import vfio_binding_node
from nvdra_testing.node.vfio_binding_node import CLAIM, BindingNode, held, keep
from nvdra_testing.polling import wait_until

NOT_SUPPORTED, NO_PERMISSION = 3, 4
SWITCH_LIMIT_S = 15.0
"""`SWITCH_S` of a switch, what a lasting one is waited for, and what the rest takes when busy."""
CLIENT = """
import pynvml, sys
pynvml.nvmlInit()
try:
    pynvml.nvmlDeviceGetHandleByPciBusId(sys.argv[1])
    print("open", flush=True)
except pynvml.NVMLError as error:
    print(error.value, flush=True)
sys.stdin.read()
"""


def client(node: ServedNode, index: int) -> tuple[Sequence[str], dict[str, str]]:
    """A program that uses a GPU by NVML."""
    command = (sys.executable, "-c", CLIENT, node.address(index))
    return command, {"PATH": os.defpath, **node.environment}


def answer_of_client(node: ServedNode, index: int) -> str:
    """What a program that uses a GPU says, and ends."""
    command, environment = client(node, index)
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def is_kept(node: ServedNode, index: int) -> bool | None:
    """Whether nvidia-persistenced has a GPU open, as it says itself."""
    return persistenced.is_keeping(
        Host(driver_root=node.roots.driver), PciAddress(node.address(index))
    )


def state_of(node: ServedNode, index: int) -> tuple[bool, bool]:
    """Whether the kernel module keeps a GPU running, and whether it is drained."""
    now = node.state.snapshot().gpus[index]
    return bool(now.persistence), bool(now.drained)


def fail(node: ServedNode, function: str, code: int) -> None:
    """Have calls of NVML fail from now on."""
    node.state.add_rule(
        Fault(
            function=function,
            gpu=None,
            result=code,
            activation_status=None,
            times=None,
            after_calls=0,
            probability=1.0,
            delay_ms=0,
            do_work=False,
            abort=False,
        )
    )


def found(change: BindVfio) -> tuple[str | None, bool | None]:
    """What a change has found of clients."""
    return change.former_persistence, change.was_drained


async def fails_busy(made: BindingNode, change: BindVfio) -> RetryableError:
    """Apply a change that is refused because of a process, and undo it as the engine does."""
    with pytest.raises(RetryableError) as caught:
        await made.kind.apply(CLAIM, change, keep)
    assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
    await made.kind.revert(CLAIM, change)
    return caught.value


async def test_nvidia_persistenced_lets_go_of_the_gpu_and_has_it_again_afterwards(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced():
            all_gpus = made.gpus()
            change = await made.kind.inspect(CLAIM, made.change(1))
            assert found(change) == ("daemon", False)
            assert is_kept(made.node, 1), "to look changes nothing"
            await made.kind.apply(CLAIM, change, keep)
            assert made.driver(1) == "vfio-pci"
            kept = [is_kept(made.node, index) for index in range(4)]
            assert kept == [True, False, True, True]

            await made.kind.revert(CLAIM, change)
            assert made.driver(1) == "nvidia"
            assert is_kept(made.node, 1)
            assert state_of(made.node, 1) == (False, False)
            await wait_until(lambda: made.gpus() == all_gpus)


async def test_a_drain_that_outlives_the_unbind_is_ended_as_well(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path, node={"unbind_ends_drain": False}) as made:
        with made.node.persistenced():
            change = await made.bind(1)
            await made.kind.revert(CLAIM, change)
            assert made.driver(1) == "nvidia"
            assert is_kept(made.node, 1)
            assert state_of(made.node, 1) == (False, False)
            await wait_until(lambda: len(made.gpus()) == 4)


async def test_a_mode_of_the_kernel_module_ends_too_and_is_as_before_afterwards(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.state.transaction() as now:
            now.gpus[1].persistence = 1
        change = await made.bind(1)
        assert found(change) == ("driver", False)
        await made.kind.revert(CLAIM, change)
        assert state_of(made.node, 1) == (True, False)


async def test_a_gpu_without_persistence_mode_has_none_afterwards(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced("--no-persistence-mode"):
            change = await made.bind(1)
            assert found(change) == ("off", False)
            await made.kind.revert(CLAIM, change)
            await wait_until(lambda: len(made.gpus()) == 4)
            assert not is_kept(made.node, 1)
            assert state_of(made.node, 1) == (False, False)


async def test_what_nvidia_persistenced_cannot_open_again_the_kernel_module_keeps_running(
    tmp_path: Path,
) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#1037"""
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced("--cannot-reopen"):
            await made.kind.revert(CLAIM, await made.bind(1))
            assert (made.driver(1), is_kept(made.node, 1)) == ("nvidia", False)
            assert state_of(made.node, 1) == (True, False)
            again = await made.bind(1)
            assert found(again) == ("driver", False)
            await made.kind.revert(CLAIM, again)
            assert state_of(made.node, 1) == (True, False)


async def test_a_daemon_that_does_not_let_go_is_named_with_what_helps(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced() as pid:
            made.node.persistenced_socket.rename(tmp_path / "elsewhere")
            with pytest.raises(RetryableError) as caught:
                await made.kind.inspect(CLAIM, made.change(1))
            (tmp_path / "elsewhere").rename(made.node.persistenced_socket)
        assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
        assert f"nvidia-persiste (pid {pid})" in caught.value.message
        assert "nvidia-smi -pm 0" in caught.value.remedy
        assert state_of(made.node, 1) == (False, False)


async def test_a_daemon_that_does_not_answer_is_named_and_nothing_is_unbound(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced() as pid:
            change = await made.kind.inspect(CLAIM, made.change(1))
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(RetryableError) as caught:
                await made.kind.apply(CLAIM, change, keep)
            os.kill(pid, signal.SIGCONT)
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            assert "nvidia-persistenced does not answer" in caught.value.message
            await made.kind.revert(CLAIM, change)
            assert made.driver(1) == "nvidia"
            assert is_kept(made.node, 1)


async def test_a_client_that_comes_before_the_unbind_does_not_get_the_gpu(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        change = await made.kind.inspect(CLAIM, made.change(1))
        other = SessionHold(tmp_path)  # of another program of nvdra, which is waited for
        assert other.acquire()
        async with asyncio.TaskGroup() as group:
            switch = group.create_task(made.kind.apply(CLAIM, change, keep))
            await wait_until(lambda: state_of(made.node, 1) == (False, True))
            assert await asyncio.to_thread(answer_of_client, made.node, 1) != "open"
            assert made.driver(1) == "nvidia"
            other.release()
            await switch
        assert made.driver(1) == "vfio-pci"
        await made.kind.revert(CLAIM, change)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
async def test_a_gpu_that_cannot_be_drained_is_bound_all_the_same_and_the_log_says_it_once(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        fail(made.node, "nvmlDeviceModifyDrainState", code)
        for _ in range(2):
            change = await made.bind(1)
            assert made.driver(1) == "vfio-pci"
            await made.kind.revert(CLAIM, change)
            await wait_until(lambda: len(made.gpus()) == 4)
        said = [record for record in caplog.records if "not drained" in record.getMessage()]
        assert len(said) == 1


async def test_a_driver_that_does_not_know_draining_is_not_asked_for_it(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        fail(made.node, "nvmlDevice*DrainState", NOT_SUPPORTED)
        change = await made.bind(1)
        assert found(change) == ("off", None)
        assert made.driver(1) == "vfio-pci"
        await made.kind.revert(CLAIM, change)
        assert made.driver(1) == "nvidia"


async def test_without_draining_a_user_that_comes_late_is_waited_for_and_others_go_on(
    tmp_path: Path,
) -> None:
    """A part of the kernel is in no process, so that no look finds it, and no drain ends it."""
    async with vfio_binding_node.opened(tmp_path) as made:
        fail(made.node, "nvmlDevice*DrainState", NOT_SUPPORTED)
        change = await made.kind.inspect(CLAIM, made.change(1))
        gpu = made.node.state.gpu("1")
        incidents.set_kernel_client(made.node.state, gpu, uses=True)
        began = time.monotonic()
        with pytest.raises(RetryableError) as caught:
            await made.kind.apply(CLAIM, change, keep)
        assert time.monotonic() - began < SWITCH_LIMIT_S
        assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
        assert len(made.gpus()) == 3, "NVML is open again, without this GPU"
        other = await made.bind(2)
        assert made.driver(2) == "vfio-pci"
        await made.kind.revert(CLAIM, other)
        incidents.set_kernel_client(made.node.state, gpu, uses=False)
        await wait_until(lambda: made.driver(1) is None)
        await made.kind.revert(CLAIM, change)
        assert made.driver(1) == "nvidia"


async def test_a_bind_that_fails_leaves_everything_as_before(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced():
            fault = Faults(driver="vfio-pci", bind_errno=5)
            incidents.set_pci_faults(made.node.state, made.node.address(1), fault)
            change = await made.kind.inspect(CLAIM, made.change(1))
            with pytest.raises(RetryableError) as caught:
                await made.kind.apply(CLAIM, change, keep)
            assert caught.value.reason is Reason.VFIO_BIND_FAILED
            await made.kind.revert(CLAIM, change)
            assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
            assert is_kept(made.node, 1)
            assert state_of(made.node, 1) == (False, False)
            await wait_until(lambda: len(made.gpus()) == 4)


async def test_a_process_that_came_before_the_drain_is_named_and_everything_is_as_before(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced():
            change = await made.kind.inspect(CLAIM, made.change(1))
            with held(*client(made.node, 1)) as holder:
                refused = await fails_busy(made, change)
                assert f"(pid {holder.pid})" in refused.message
                assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
                assert is_kept(made.node, 1)
                assert state_of(made.node, 1) == (False, False)
                await wait_until(lambda: len(made.gpus()) == 4)


async def test_a_plugin_that_is_killed_after_the_drain_leaves_a_record_that_undoes_it(
    tmp_path: Path,
) -> None:
    with passthrough_fixtures.served("t4", tmp_path) as node, node.persistenced():
        async with vfio_binding_node.running(node, tmp_path) as made:
            change = await made.kind.inspect(CLAIM, made.change(1))
            former = ClientAccess(change.former_persistence, change.was_drained)
            await made.drain.begin(change.pci, change.device, former)
        assert not is_kept(node, 1)
        assert state_of(node, 1) == (False, True)
        async with vfio_binding_node.running(node, tmp_path, gpu_count=3) as made:
            await made.kind.revert(CLAIM, BindVfio.model_validate_json(change.model_dump_json()))
            assert is_kept(node, 1)
            assert state_of(node, 1) == (False, False)
            await wait_until(lambda: len(made.gpus()) == 4)


async def test_the_same_attempt_goes_on_after_the_plugin_was_killed(tmp_path: Path) -> None:
    with passthrough_fixtures.served("t4", tmp_path) as node, node.persistenced():
        async with vfio_binding_node.running(node, tmp_path) as made:
            change = await made.kind.inspect(CLAIM, made.change(1))
            former = ClientAccess(change.former_persistence, change.was_drained)
            await made.drain.begin(change.pci, change.device, former)
        async with vfio_binding_node.running(node, tmp_path, gpu_count=3) as made:
            again = made.change(1).resumed(change)
            await made.kind.apply(CLAIM, again, keep)
            assert made.driver(1) == "vfio-pci"
            await made.kind.revert(CLAIM, again)
            assert is_kept(node, 1)
            await wait_until(lambda: len(made.gpus()) == 4)


async def test_a_gpu_that_an_administrator_drained_stays_so(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.state.transaction() as now:
            now.gpus[1].drained = 1
        change = await made.kind.inspect(CLAIM, made.change(1))
        assert found(change) == ("off", True)
        with held(made.holding(1)):
            await fails_busy(made, change)
        assert state_of(made.node, 1) == (False, True)


async def test_a_claim_is_let_go_although_nvml_is_away(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with made.node.persistenced():
            change = await made.bind(1)
        incidents.unload_driver(made.node.state)
        await made.kind.revert(CLAIM, change)
        assert made.driver(1) is None
        incidents.load_driver(made.node.state)
        assert made.driver(1) == "nvidia"
