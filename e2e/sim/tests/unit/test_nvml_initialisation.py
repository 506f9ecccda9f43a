# SPDX-License-Identifier: Apache-2.0
"""GPUs that take their time to answer the first client, and GPUs that are excluded.

Source: docs/reference/nvml-simulator.md §10.7.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import clients
from nvdra_sim.state_file.state import State
from nvdra_sim.testing.nvml_fixtures import NvmlOn

IN_USE = 19
COLD_S = 0.5
WARM_S = 0.25

CLIENT = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
sys.stdin.read()
"""


def cold(nvml_on: NvmlOn) -> State:
    """Four boards, of which the first two take half a second to answer."""
    entries = [{"index": index, "initialisation_ms": round(COLD_S * 1000)} for index in (0, 1)]
    return nvml_on("t4", overrides={"gpus": entries})


def asked(index: int) -> float:
    """How long it takes to get a GPU's handle."""
    started = time.monotonic()
    pynvml.nvmlDeviceGetHandleByIndex(index)
    return time.monotonic() - started


@contextmanager
def client() -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the first GPU."""
    command = (sys.executable, "-c", CLIENT, str(nvml_library.build()))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_only_the_first_call_of_a_session_takes_its_time(nvml_on: NvmlOn) -> None:
    cold(nvml_on)
    assert asked(2) < WARM_S, "a GPU that has no such time"
    assert asked(0) >= COLD_S
    assert asked(0) < WARM_S
    assert asked(1) >= COLD_S, "each GPU for itself"
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert asked(0) >= COLD_S


def test_opening_a_session_and_counting_initialise_nothing(nvml_on: NvmlOn) -> None:
    cold(nvml_on)
    started = time.monotonic()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 4
    assert time.monotonic() - started < WARM_S


def test_several_gpus_are_initialised_side_by_side_and_one_only_once(nvml_on: NvmlOn) -> None:
    cold(nvml_on)
    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        waits = list(pool.map(asked, (0, 0, 1, 1)))
    assert min(waits) >= COLD_S - 0.1, "whoever comes during an initialisation waits for its end"
    assert time.monotonic() - started < 2 * COLD_S


def test_persistence_mode_keeps_a_gpu_initialised(nvml_on: NvmlOn) -> None:
    cold(nvml_on)
    pynvml.nvmlDeviceSetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert asked(0) < WARM_S
    assert asked(1) >= COLD_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_another_process_keeps_a_gpu_initialised_until_it_ends(
    nvml_on: NvmlOn, number: signal.Signals
) -> None:
    cold(nvml_on)
    with client() as process:
        assert asked(0) < WARM_S
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert asked(0) < WARM_S
        pynvml.nvmlShutdown()
        os.kill(process.pid, number)
    pynvml.nvmlInit()
    assert asked(0) >= COLD_S


def test_another_process_leaves_a_switch_of_the_mig_mode_pending_on_ampere(
    nvml_on: NvmlOn,
) -> None:
    nvml_on("dgx-a100", mig={"ampere_reset": "auto"})
    with client() as process:
        assert pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1) == IN_USE
        assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0)) == [0, 1]
        process.kill()
    assert pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1) == 0
    assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0)) == [1, 1]


def test_the_time_may_be_changed_and_outlives_a_boot(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    incidents.set_initialisation(node, node.gpu("3"), round(COLD_S * 1000))
    incidents.reboot(node)
    assert asked(3) >= COLD_S


def test_an_excluded_gpu_is_neither_counted_nor_found_and_named_as_such(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", overrides={"gpus": [{"index": 1, "excluded": True}]})
    gpus = node.description().gpus
    assert pynvml.nvmlDeviceGetCount() == 3
    uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(3)]
    assert uuids == [gpu.uuid for gpu in gpus if gpu.index != 1]
    assert pynvml.nvmlGetExcludedDeviceCount() == 1
    info = pynvml.nvmlGetExcludedDeviceInfoByIndex(0)
    assert info.pci.busId == f"0000{gpus[1].bus_id}".upper()
    assert info.uuid == gpus[1].uuid
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGetExcludedDeviceInfoByIndex(1)


def test_a_session_and_each_gpu_that_it_uses_are_seen_by_others_until_it_ends(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("t4", initialize=False)
    assert not clients.has_session(node)
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    assert clients.has_session(node)
    assert clients.has_clients(node, 1), "it may use any GPU at any time"
    pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()
    assert clients.has_session(node), "the last of the sessions counts"
    pynvml.nvmlShutdown()
    assert not clients.has_session(node)
    assert not clients.has_clients(node, 0)


def test_a_process_that_is_killed_has_no_session(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", initialize=False)
    with client() as other:
        assert clients.has_session(node)
        other.kill()
        other.wait()
        assert not clients.has_clients(node, 0)


@pytest.mark.parametrize("persistence", [0, 1])
def test_without_persistence_mode_settings_last_as_long_as_the_last_client(
    nvml_on: NvmlOn, persistence: int
) -> None:
    nvml_on("t4")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetPersistenceMode(gpu, persistence)
    pynvml.nvmlDeviceSetComputeMode(gpu, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    with client():
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetComputeMode(gpu) == 3, "another process keeps the GPU up"
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    mode = pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert mode == (3 if persistence else 0)
