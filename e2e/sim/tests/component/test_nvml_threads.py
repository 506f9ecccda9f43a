# SPDX-License-Identifier: Apache-2.0
"""Sixteen threads mix all kinds of calls for ten seconds while the node changes (§21.10)."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pynvml
from nvdra_sim import incidents
from nvdra_sim.state_file.state import State
from nvdra_sim.testing.nvml_fixtures import NvmlOn

THREADS, SECONDS = 16, 10.0
XID = 0x8
CUT = [
    {"profile": "3g.40gb", "start": 4, "compute": ["2c", "1c"]},
    {"profile": "2g.20gb", "start": 0, "compute": ["1c", "1c"]},
]
# A board may be lost or reset in between, a MIG device gone, an event not there yet.
EXPECTED = {2, 3, 6, 10, 15}


def handle(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def calls(node: State) -> dict[str, Callable[[int], bool]]:
    """What a thread may do to board `index`; each says whether the answer is right."""
    gpus = node.description().gpus

    def by_uuid(index: int) -> bool:
        found = pynvml.nvmlDeviceGetHandleByUUID(gpus[index].uuid)
        return bool(pynvml.nvmlDeviceGetUUID(found) == gpus[index].uuid)

    def mig(index: int) -> bool:
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(index), 1)
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        slices = pynvml.nvmlDeviceGetAttributes(device).gpuInstanceSliceCount
        return bool(pynvml.nvmlDeviceGetUUID(parent) == gpus[index].uuid and slices in (2, 3))

    def instance(index: int) -> bool:
        found = pynvml.nvmlDeviceGetGpuInstanceById(handle(index), 2)
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(found, 1)
        info = pynvml.nvmlComputeInstanceGetInfo(compute)
        return bool(info.id == 1 and pynvml.nvmlDeviceGetComputeInstanceId(info.device) == 1)

    def event(index: int) -> bool:
        events = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(handle(index), XID, events)
            told = pynvml.nvmlEventSetWait_v2(events, 20)
            return bool(told.eventData % 8 == index)
        finally:
            pynvml.nvmlEventSetFree(events)

    def persistence(index: int) -> bool:
        pynvml.nvmlDeviceSetPersistenceMode(handle(index), 1)
        return pynvml.nvmlDeviceGetPersistenceMode(handle(index)) in (0, 1)

    def session(_: int) -> bool:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        return True

    def fabric(index: int) -> bool:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle(index), pynvml.byref(info))
        return bool(info.state == gpus[index].fabric.state)

    return {
        "count": lambda _: pynvml.nvmlDeviceGetCount() == len(gpus),
        "uuid": by_uuid,
        "name": lambda index: pynvml.nvmlDeviceGetName(handle(index)) == gpus[index].name,
        "memory": lambda index: pynvml.nvmlDeviceGetMemoryInfo(handle(index)).total > 0,
        "mig": mig,
        "instance": instance,
        "event": event,
        "persistence": persistence,
        "session": session,
        "fabric": fabric,
    }


def test_every_answer_is_right_or_an_error_of_the_moment(nvml_on: NvmlOn) -> None:
    gpus = [{"index": index, "mig": {"mode": True, "instances": CUT}} for index in range(4)]
    node = nvml_on("dgx-h100", overrides={"gpus": gpus})
    does = calls(node)
    end = time.monotonic() + SECONDS
    stop = threading.Event()

    def work(seed: int) -> Counter[tuple[str, object]]:
        chance, done = random.Random(seed), Counter[tuple[str, object]]()
        while time.monotonic() < end:
            name, index = chance.choice(list(does)), chance.randrange(8)
            try:
                done[name, does[name](index)] += 1
            except pynvml.NVMLError as error:
                done[name, int(error.value)] += 1
        return done

    def disturb() -> None:
        chance, number = random.Random(0), 0
        while not stop.is_set():
            number += 1
            gpu = node.gpu(str(number % 8))
            incidents.report_xid(node, gpu, 8 * 100 + number % 8)
            if chance.random() < 0.05:
                node.lose(gpu)
                node.restore(gpu)
            if chance.random() < 0.02 and gpu.index >= 4:
                incidents.reset(node, gpu)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    with ThreadPoolExecutor(THREADS) as pool:
        done = sum(pool.map(work, range(THREADS)), Counter[tuple[str, object]]())
    stop.set()
    disturber.join()
    assert {key for key in done if key[1] is False} == set()
    assert {answer for _, answer in done} <= {True, *EXPECTED}
    assert {name for name, answer in done if answer is True} == set(does)
    assert pynvml.nvmlDeviceGetCount() == 8
