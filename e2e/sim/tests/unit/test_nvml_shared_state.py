# SPDX-License-Identifier: Apache-2.0
"""One node for all processes: what one changes, the others see, whole and at once.

Source: docs/reference/nvml-simulator.md §10.
"""

import ctypes
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvdra_sim import incidents
from nvdra_sim.configuration import node_config
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import state
from nvdra_sim.testing.nvml_fixtures import NvmlOn

LOAD = (
    f"import ctypes, os, pynvml; ctypes.CDLL({str(nvml_library.build())!r}, ctypes.RTLD_GLOBAL)\n"
)
# Writes one number into all of GPU 0's fabric facts, again and again.
RESTLESS_WRITER = """
from pathlib import Path
from nvdra_sim.state_file import state
node = state.load(Path(os.environ["NVDRA_SIM_STATE"]))
print("ready", flush=True)
for number in range(1, {times}):
    with node.transaction() as now:
        now.gpus[0].fabric_clique = now.gpus[0].fabric_health_mask = number % 250
        now.gpus[0].fabric_uuid = type(now.gpus[0].fabric_uuid)(*[number % 250] * 16)
"""


def python(script: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with the library loaded in another process; fails with what it said."""
    done = subprocess.run(
        [*command, sys.executable, "-c", LOAD + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def writer(times: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD + RESTLESS_WRITER.format(times=times)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def fabric_numbers() -> set[int]:
    """The numbers in GPU 0's fabric facts, told by one call."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.byref(info))
    return {*info.clusterUuid, info.cliqueId, info.healthMask}


def test_another_process_sees_a_mode_at_once(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100")
    handle = pynvml.nvmlDeviceGetHandleByIndex(5)
    pynvml.nvmlDeviceSetComputeMode(handle, 3)
    other = python(
        """
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(5)
        print(pynvml.nvmlDeviceGetComputeMode(handle))
        pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
        """
    )
    assert other.stdout == "3\n"
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 1


def test_a_reader_never_sees_half_a_change(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    seen: set[int] = set()
    with writer(2000) as process:
        while process.poll() is None:
            (number,) = fabric_numbers()
            seen.add(number)
    assert len(seen) > 1
    assert node.generation == 2000


def test_the_control_tool_never_sees_half_a_change(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    seen = set()
    with writer(1000) as process:
        while process.poll() is None:
            now = node.snapshot().gpus[0]
            (number,) = {*now.fabric_uuid, now.fabric_clique, now.fabric_health_mask}
            seen.add(number)
    assert len(seen) > 1


def test_a_killed_writer_leaves_a_whole_state_and_no_lock(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    for _ in range(5):
        with writer(10**9) as process:
            while len(fabric_numbers()) == 1 and node.generation % 50 != 0:
                continue
            process.send_signal(signal.SIGKILL)
        assert len(fabric_numbers()) == 1
        node.lose(node.gpu("1"))
        node.restore(node.gpu("1"))


def test_writers_of_several_processes_do_not_undo_each_other(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    toggle = """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex({index})
    for turn in range(201):
        pynvml.nvmlDeviceSetPersistenceMode(handle, 1 - turn % 2)
    """
    script = LOAD + textwrap.dedent(toggle)
    processes = [
        subprocess.Popen([sys.executable, "-c", script.format(index=index)]) for index in range(3)
    ]
    for number in range(200):
        node.lose(node.gpu("4")) if number % 2 == 0 else node.restore(node.gpu("4"))
    assert [process.wait() for process in processes] == [0, 0, 0]
    now = node.snapshot()
    assert [now.gpus[index].persistence for index in range(4)] == [1, 1, 1, 0]
    assert node.generation == 1 + 3 * 201 + 200


def test_threads_of_one_process_do_not_undo_each_other(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    uuids = [gpu.uuid for gpu in node.description().gpus]

    def work(index: int) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index % 8)
        for turn in range(101):
            if index < 8:
                pynvml.nvmlDeviceSetPersistenceMode(handle, 1 - turn % 2)
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetUUID(handle) == uuids[index % 8]
            assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 81559 << 20
            pynvml.nvmlShutdown()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [None] * 16
    assert [now.persistence for now in node.snapshot().gpus[:8]] == [1] * 8
    assert pynvml.nvmlDeviceGetCount() == 8


def test_parent_and_child_both_work_after_a_fork(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    done = python(
        """
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        child = os.fork()
        if child == 0:
            pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
            pynvml.nvmlShutdown()
            pynvml.nvmlInit()
            os._exit(pynvml.nvmlDeviceGetCount())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        print(pynvml.nvmlDeviceGetPersistenceMode(handle))
        pynvml.nvmlDeviceSetPersistenceMode(handle, 0)
        pynvml.nvmlShutdown()
        """
    )
    assert done.stdout == "1\n"


def test_a_shutdown_leaves_the_calls_of_other_threads_alone(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers: set[int] = set()
    library_ = ctypes.CDLL("libnvidia-ml.so.1")
    stop = threading.Event()

    def ask() -> None:
        room = ctypes.create_string_buffer(80)
        while not stop.is_set():
            answers.add(library_.nvmlDeviceGetUUID(handle, room, 80))

    asker = threading.Thread(target=ask)
    asker.start()
    for _ in range(2000):
        library_.nvmlShutdown()
        library_.nvmlInit_v2()
    stop.set()
    asker.join()
    assert answers <= {0, 1}


# Who may change anything


def test_without_the_right_nothing_is_changed(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", node={"privilege": "euid"})
    refused = python(
        """
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for call in (pynvml.nvmlDeviceSetPersistenceMode, pynvml.nvmlDeviceSetComputeMode):
            try:
                call(handle, 0)
            except pynvml.NVMLError as error:
                print(error.value)
        """,
        "unshare",
        "--map-user=65534",
    )
    assert refused.stdout == "4\n4\n"
    assert node.generation == 1


def test_a_file_that_cannot_be_written_is_read(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    mount = f"mount --bind {node.path} {node.path} && mount -o remount,ro,bind {node.path}"
    done = python(
        """
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        print(pynvml.nvmlDeviceGetName(handle))
        try:
            pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
        except pynvml.NVMLError as error:
            print(error.value)
        """,
        *("unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"),
    )
    assert done.stdout == "Tesla T4\n4\n"


# Boots


def test_a_reboot_forgets_modes_and_losses_but_not_rules(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", faults=[{"match": {"function": "nvmlDeviceGetSerial"}, "result": 6}])
    before = node.snapshot().boot_id
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
    node.lose(node.gpu("1"))
    boot_id = incidents.reboot(node)
    assert UUID(boot_id).version == 4
    assert node.snapshot().boot_id == boot_id.encode() != before
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 0
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)) == "Tesla T4"
    assert [rule.fault.function for rule in node.rules()] == ["nvmlDeviceGetSerial"]


def test_a_node_that_boots_with_its_host_notices_at_the_first_init(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", initialize=False, node={"boot_id": "host"})
    with node.transaction() as now:
        now.boot_id = b"00000000-0000-0000-0000-000000000000"
        now.gpus[2].lost = now.gpus[2].persistence = 1
    pynvml.nvmlInit()
    now = node.snapshot()
    host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert now.boot_id.decode() == host
    assert (now.gpus[2].lost, now.gpus[2].persistence) == (0, 0)


def test_a_node_that_boots_by_itself_does_not_follow_the_host(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", initialize=False, node={"boot_id": "host"})
    boot_id = incidents.reboot(node)
    node.lose(node.gpu("2"))
    pynvml.nvmlInit()
    now = node.snapshot()
    assert (now.boot_id.decode(), now.gpus[2].lost) == (boot_id, 1)


# The file


def test_a_file_is_filled_anew_under_those_who_have_it_mapped(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    assert pynvml.nvmlDeviceGetCount() == 4
    state.create(
        node.path, node_config.from_profile("dgx-h100", "other", {"node": {"visibility": "all"}})
    )
    assert pynvml.nvmlDeviceGetCount() == 8
    assert node.description().name == "other"


def test_the_description_comes_back_from_the_file(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72", initialize=False)
    again = state.load(node.path).description()
    wanted = node_config.from_profile(
        "gb200-nvl72", "node-0", {"node": {"visibility": "all", "privilege": "none"}}
    )
    assert again == wanted


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    foreign = tmp_path / "letter"
    foreign.write_text("dear all")
    with pytest.raises(state.StateError, match="is not a state file"):
        state.create(foreign, node_config.from_profile("t4", "n"))
    with pytest.raises(state.StateError, match="is not a state file"):
        state.load(foreign)
    assert foreign.read_text() == "dear all"


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(state.StateError, match="nvdra-simctl init"):
        state.load(tmp_path / "absent")


def test_calls_are_counted_with_their_errors(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.reset_counters()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(3):
        pynvml.nvmlDeviceGetName(handle)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMigMode(handle)
    assert node.counters() == {
        name: state.CallCount(name, calls, errors)
        for name, calls, errors in (
            ("nvmlDeviceGetHandleByIndex_v2", 1, 0),
            ("nvmlDeviceGetMigMode", 1, 1),
            ("nvmlDeviceGetName", 3, 0),
        )
    }


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, int]:
    return draw(st.sampled_from(["lose", "restore", "persist", "reboot"])), draw(st.integers(0, 3))


@given(st.lists(changes(), max_size=20))
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example makes its node
)
def test_any_order_of_changes_is_what_nvml_then_says(
    nvml_on: NvmlOn, sequence: list[tuple[str, int]]
) -> None:
    node = nvml_on("t4")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
    lost, persistent = set[int](), set[int]()
    for change, index in sequence:
        if change == "lose":
            node.lose(node.gpu(str(index)))
            lost.add(index)
        elif change == "restore":
            node.restore(node.gpu(str(index)))
            lost.discard(index)
        elif change == "reboot":
            incidents.reboot(node)
            lost, persistent = set(), set()
        elif index not in lost:
            pynvml.nvmlDeviceSetPersistenceMode(handles[index], 1)
            persistent.add(index)
    for index, handle in enumerate(handles):
        if index in lost:
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                pynvml.nvmlDeviceGetPersistenceMode(handle)
        else:
            assert pynvml.nvmlDeviceGetPersistenceMode(handle) == int(index in persistent)
    assert {index for index in range(4) if node.snapshot().gpus[index].persistence} == persistent
