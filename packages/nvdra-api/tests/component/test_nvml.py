# SPDX-License-Identifier: Apache-2.0
"""The NVML adapter on simulated boards, below an unmodified pynvml.

Each reading is a process of its own: pynvml keeps the first library it loads.
"""

import json
import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_runtime.node.nvml import Nvml, NvmlError, ReturnCode
from nvdra_sim import incidents
from nvdra_sim.description import Fault
from nvdra_sim.state_file import layout, state
from nvdra_sim.testing.node_fixtures import installed

PROLOGUE = """
import json, sys
from pathlib import Path
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import Nvml, NvmlError

calls = []

def load():
    library = Host(driver_root=Path(sys.argv[1])).find_library("libnvidia-ml.so.1")
    return Nvml.load(library, lambda function, seconds, ok: calls.append((function, ok)))

def told(function, *arguments):
    try:
        return function(*arguments)
    except NvmlError as error:
        return {"code": error.code, "absent": error.is_unsupported, "text": str(error),
                "device": error.device, "hashable": hash(error) is not None}

def show(value):
    print(json.dumps(value), flush=True)
"""


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda profile, **sections: stack.enter_context(
            installed(profile, tmp_path / profile, **sections)
        )


def asking(node: Any, script: str) -> Any:
    """A process that runs the script; nothing but the driver root says where the library is."""
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + script, str(node.roots.driver)],
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read(node: Any, script: str) -> Any:
    """What the script shows."""
    with asking(node, script) as process:
        return json.loads(process.communicate()[0])


def fault(function: str, gpu: Any = None, result: Any = None, delay_ms: Any = 0) -> Any:
    return Fault(
        function=function,
        gpu=gpu,
        result=result,
        activation_status=None,
        times=None,
        after_calls=0,
        probability=1.0,
        delay_ms=delay_ms,
        do_work=False,
        abort=False,
    )


EVERYTHING = """
nvml = load()
gpus = [nvml.handle_by_index(i) for i in range(nvml.device_count())]
show({"driver": nvml.driver_version(), "cuda": nvml.cuda_driver_version(), "gpus": [
    {"uuid": gpu.uuid, "minor": nvml.minor_number(gpu), "name": nvml.name(gpu),
     "memory": nvml.memory_total_bytes(gpu), "architecture": nvml.architecture(gpu),
     "brand": nvml.brand(gpu), "capability": nvml.compute_capability(gpu),
     "pci": nvml.pci_bus_id(gpu), "mig": nvml.is_mig_enabled(gpu),
     "addressing": nvml.addressing_mode(gpu), "alive": nvml.verify_alive(gpu) is None}
    for gpu in gpus]})
nvml.close()
"""


@pytest.mark.parametrize("profile", ["dgx-h100", "dgx-a100-shuffled", "mixed", "gb200-nvl72", "t4"])
def test_everything_there_is_to_know_of_a_board_is_read(make_node: Any, profile: str) -> None:
    node = make_node(profile)
    shown = read(node, EVERYTHING)
    assert shown["driver"] == node.description.driver.version
    assert shown["cuda"] >= 12000
    assert shown["gpus"] == [
        {
            "uuid": gpu.uuid,
            "minor": gpu.minor,
            "name": gpu.name,
            "memory": gpu.memory_mib * 1024**2,
            "architecture": gpu.architecture,
            "brand": gpu.brand,
            "capability": list(gpu.compute_capability),
            "pci": f"{gpu.bus.domain:04x}:{gpu.bus.bus:02x}:{gpu.bus.device:02x}.0",
            "mig": False,
            "addressing": gpu.addressing,
            "alive": True,
        }
        for gpu in node.description.gpus
    ]


@pytest.mark.parametrize(
    ("field", "question"),
    [("driver_version", "nvml.driver_version"), ("name", "nvml.name, nvml.handle_by_index(0)")],
)
def test_a_text_that_is_not_utf8_is_an_error_of_nvml(
    make_node: Any, field: str, question: str
) -> None:
    node = make_node("dgx-a100")
    with node.state.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        start, kind = layout.REGIONS["description"]
        described = kind.from_buffer(mapped, start)
        holder = described if field == "driver_version" else described.gpus[0]
        setattr(holder, field, b"58\xff\xfe")
        del holder, described  # else the file stays mapped
    shown = read(node, f"nvml = load()\nshow(told({question}))\nnvml.close()")
    assert shown["code"] == ReturnCode.UNKNOWN
    assert "not UTF-8" in shown["text"]
    assert shown["device"] == ("" if field == "driver_version" else node.description.gpus[0].uuid)


def test_a_node_without_gpus_is_no_error(make_node: Any) -> None:
    assert read(make_node("none"), "nvml = load()\nshow(nvml.device_count())\nnvml.close()") == 0


def test_boards_that_the_kernel_module_leaves_alone_are_named(make_node: Any) -> None:
    script = "nvml = load()\nshow([nvml.device_count(), nvml.excluded_gpus()])\nnvml.close()"
    excluded = [{"index": index, "excluded": True} for index in (1, 2)]
    node = make_node("t4", overrides={"gpus": excluded})
    assert read(node, script) == [2, ["0000:86:00.0", "0000:af:00.0"]]
    assert read(make_node("dgx-h100"), script) == [8, []]
    old = make_node("dgx-a100")
    state.load(old.state).add_rule(fault("nvmlGetExcluded*", result=int(ReturnCode.NOT_SUPPORTED)))
    assert read(old, script) == [8, []]


def test_every_call_is_observed(make_node: Any) -> None:
    shown = read(
        make_node("t4"),
        "nvml = load()\nnvml.name(nvml.handle_by_index(0))\ntold(nvml.handle_by_index, 7)\n"
        "show(calls)\nnvml.close()",
    )
    assert shown == [
        ["nvmlInitWithFlags", True],
        ["nvmlDeviceGetHandleByIndex", True],
        ["nvmlDeviceGetUUID", True],
        ["nvmlDeviceGetName", True],
        ["nvmlDeviceGetHandleByIndex", False],
    ]


def test_a_driver_that_is_not_loaded_is_told(make_node: Any) -> None:
    node = make_node("t4", driver={"module_loaded": False})
    assert read(node, "show(told(load))")["code"] == 9


def test_a_library_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("no library")
    with pytest.raises(NvmlError) as caught:
        Nvml.load(library, lambda *_: None)
    assert caught.value.code == ReturnCode.LIBRARY_NOT_FOUND
    assert str(library) in str(caught.value)


PROVE = """
nvml = load()
gpu, other = nvml.handle_by_index(0), nvml.handle_by_index(1)
nvml.verify_alive(gpu)
print(gpu.uuid, flush=True)
sys.stdin.readline()
show([told(nvml.verify_alive, gpu), told(nvml.verify_alive, other)])
nvml.close()
"""


def test_a_board_that_is_lost_while_its_handle_is_held_is_found_out(make_node: Any) -> None:
    node = make_node("dgx-h100")
    with asking(node, PROVE) as process:
        uuid = process.stdout.readline().strip()
        simulated = state.load(node.state)
        simulated.lose(simulated.gpu("0"))
        process.stdin.write("go\n")
        process.stdin.close()
        lost, other = json.loads(process.stdout.readline())
    assert lost == {
        "code": pynvml.NVML_ERROR_GPU_IS_LOST,
        "absent": False,
        "text": f"nvmlDeviceGetMemoryInfo on {uuid}: GPU is lost (NVML error 15)",
        "device": uuid,
        "hashable": True,
    }
    assert other is None


HANG = """
import asyncio
from nvdra_runtime.process.worker import Worker

async def main():
    loop = asyncio.get_running_loop()
    async with Worker("gpu-0") as first, Worker("gpu-1") as second:
        nvml = await first.run(load)
        gpus = [await first.run(nvml.handle_by_index, i) for i in (0, 1)]
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            await first.run(nvml.verify_alive, gpus[0], deadline=loop.time() + 0.05)
        except TimeoutError:
            show("hangs")
        show(await second.run(nvml.verify_alive, gpus[1], deadline=loop.time() + 10))
        sys.stdin.readline()
        show(await first.run(nvml.verify_alive, gpus[0], deadline=loop.time() + 10))

asyncio.run(main())
"""


def test_a_board_that_hangs_keeps_only_its_own_worker(make_node: Any) -> None:
    node = make_node("dgx-h100")
    simulated = state.load(node.state)
    with asking(node, HANG) as process:
        assert process.stdout.readline() == "ready\n"
        rule = simulated.add_rule(fault("nvmlDeviceGetMemoryInfo", gpu=0, delay_ms=-1))
        process.stdin.write("go\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == "hangs"
        assert json.loads(process.stdout.readline()) is None
        simulated.remove_rule(rule)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) is None


@pytest.mark.parametrize("code", [ReturnCode.NOT_SUPPORTED, ReturnCode.FUNCTION_NOT_FOUND])
def test_what_a_board_or_driver_does_not_have_is_an_answer(make_node: Any, code: Any) -> None:
    node = make_node("dgx-h100")
    simulated = state.load(node.state)
    for function in ("MemoryInfo", "MigMode", "AddressingMode"):
        simulated.add_rule(fault(f"nvmlDeviceGet{function}", result=int(code)))
    shown = read(
        node,
        "nvml = load()\ngpu = nvml.handle_by_index(0)\n"
        "answers = [nvml.memory_total_bytes(gpu), nvml.addressing_mode(gpu), "
        "nvml.verify_alive(gpu), nvml.is_mig_enabled(gpu)]\nshow([answers, calls])",
    )
    answers, calls = shown
    assert answers == [None, None, None, False]
    assert all(is_ok for _, is_ok in calls)
    assert ["nvmlDeviceGetMigMode", True] in calls


@pytest.mark.parametrize("function", ["Name", "MigMode"])
def test_any_other_failure_is_an_error_with_function_and_device(
    make_node: Any, function: str
) -> None:
    node = make_node("t4")
    simulated = state.load(node.state)
    simulated.add_rule(fault(f"nvmlDeviceGet{function}", result=pynvml.NVML_ERROR_UNKNOWN))
    method = {"Name": "name", "MigMode": "is_mig_enabled"}[function]
    error = read(
        node, f"nvml = load()\ngpu = nvml.handle_by_index(0)\nshow(told(nvml.{method}, gpu))"
    )
    uuid = node.description.gpus[0].uuid
    assert error["code"] == pynvml.NVML_ERROR_UNKNOWN
    assert error["device"] == uuid
    assert error["text"] == f"nvmlDeviceGet{function} on {uuid}: Unknown Error (NVML error 999)"


@pytest.mark.parametrize("is_old", [False, True])
def test_a_gpu_tells_of_its_fabric_also_where_the_driver_knows_the_first_version_only(
    make_node: Any, is_old: Any
) -> None:
    node = make_node("gb200-nvl72")
    if is_old:
        missing = fault("nvmlDeviceGetGpuFabricInfoV", result=int(ReturnCode.FUNCTION_NOT_FOUND))
        state.load(node.state).add_rule(missing)
    told, calls = read(
        node,
        "nvml = load()\ninfo = nvml.fabric_info(nvml.handle_by_index(0))\n"
        "show([[info.state, info.status, str(info.cluster), info.clique], calls])",
    )
    assert told == [3, 0, "6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672", 2]
    asked = [function for function, _ in calls if "Fabric" in function]
    assert asked[-1] == f"nvmlDeviceGetGpuFabricInfo{'' if is_old else 'V'}"


CUT = {
    "gpus": [
        {
            "index": 0,
            "mig": {
                "mode": True,
                "instances": [
                    {"profile": "3g.40gb", "start": 4, "compute": ["2c", "1c"]},
                    {"profile": "1g.10gb+me", "start": 0, "compute": ["1c"]},
                    {"profile": "1g.10gb", "start": 1},
                ],
            },
        }
    ]
}
DESCRIBE_MIG = """
from nvdra_runtime.node import nvml_mig

nvml = load()
gpu = nvml.handle_by_index(0)
profiles = nvml_mig.profiles(nvml, gpu)
show([
    [profiles[where.profile_id].name, *where, *attributes]
    for device, attributes in nvml_mig.list_devices(nvml, gpu).items()
    for where in [nvml_mig.locate(nvml, gpu, device)]
])
"""


def test_mig_devices_are_read_with_their_places_and_a_gpu_instance_alone_is_none(
    make_node: Any,
) -> None:
    node = make_node("dgx-h100", overrides=CUT, node={"visibility": "all"})
    assert read(node, DESCRIBE_MIG) == [
        ["3g.40gb", 2, 0, 9, 4, 4, 0, 9, 3, 2, 32, 40448 << 20],
        ["3g.40gb", 2, 1, 9, 4, 4, 2, 9, 3, 1, 16, 40448 << 20],
        ["1g.10gb+me", 7, 0, 20, 0, 1, 0, 20, 1, 1, 16, 9984 << 20],
    ]


def test_a_driver_without_names_of_profiles_is_asked_for_what_it_knows(make_node: Any) -> None:
    node = make_node("dgx-h100", overrides=CUT, node={"visibility": "all"})
    driver = state.load(node.state)
    driver.add_rule(fault("nvmlDeviceGetGpuInstanceProfileInfoV", result=13))
    assert [each[0] for each in read(node, DESCRIBE_MIG)] == ["", "", ""]


FIELDS = """
from nvdra_runtime.node import nvml_fields
nvml = load()
gpu = nvml.handle_by_index(1)
before = len(calls)
values = told(nvml_fields.read, nvml, gpu)
shown = {getattr(key, "name", key): value for key, value in values.items()}
show([shown, len(calls) - before])
nvml.close()
"""


def test_how_well_a_gpu_is_is_one_call(make_node: Any) -> None:
    node = make_node("dgx-h100")
    well = dict.fromkeys(("UNCORRECTED_ERRORS", "REMAPPING_PENDING", "REMAPPING_FAILED"), 0)
    assert read(node, FIELDS) == [{**well, "RECOVERY_ACTION": 0}, 1]
    found = state.load(node.state)
    gpu = found.gpu("1")
    incidents.report_ecc_errors(found, gpu, "dbe", 3)
    incidents.set_row_remapping(found, gpu, "failed")
    incidents.set_recovery_action(found, gpu, "node_reboot")
    assert read(node, FIELDS)[0] == {
        "UNCORRECTED_ERRORS": 3,
        "REMAPPING_PENDING": 0,
        "REMAPPING_FAILED": 1,
        "RECOVERY_ACTION": 2,
    }


def test_what_a_gpu_or_its_driver_does_not_know_is_left_out(make_node: Any) -> None:
    old = make_node("t4", driver={"api_level": 560})
    assert read(old, FIELDS)[0] == {"UNCORRECTED_ERRORS": 0}
    silent = make_node("dgx-h100")
    rule = fault("nvmlDeviceGetFieldValues", result=int(ReturnCode.FUNCTION_NOT_FOUND))
    state.load(silent.state).add_rule(rule)
    assert read(silent, FIELDS)[0] == {}


def test_a_gpu_that_fails_does_not_say_how_well_it_is(make_node: Any) -> None:
    node = make_node("dgx-h100")
    rule = fault("nvmlDeviceGetFieldValues", result=int(ReturnCode.GPU_IS_LOST))
    state.load(node.state).add_rule(rule)
    assert read(node, FIELDS)[0]["code"] == ReturnCode.GPU_IS_LOST
