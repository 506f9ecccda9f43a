# SPDX-License-Identifier: Apache-2.0
"""The served sysfs of a node: what processes see that write to it, and those that use its GPUs.

Table A1 as a whole is in `e2e/sim/tests/kernel`, which runs on a real kernel, too.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from platform import release

import pytest
from nvdra_sim import incidents
from nvdra_sim.pci.bus import Faults
from nvdra_sim.simctl import main as simctl
from nvdra_sim.state_file import clients, pci_records
from nvdra_sim.sysfs_server import connection
from nvdra_sim.testing.passthrough_fixtures import MakeServedNode, ServedNode

PATIENCE_S = 30.0
LOADED = {"vfio": {"loaded": True}}
VFIO = "vfio-pci"
NVML_CLIENT = """
import pynvml, sys
pynvml.nvmlInit()
seen = pynvml.nvmlDeviceGetCount()
for word in sys.argv[1:]:
    pynvml.nvmlDeviceGetHandleByPciBusId(word)
print(seen, flush=True)
for line in sys.stdin:
    try:
        print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(sys.argv[1])), flush=True)
    except pynvml.NVMLError as error:
        print(error.value, flush=True)
"""  # noqa: E501
WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY)
print("open", flush=True)
try:
    os.write(file, sys.argv[2].encode())
    print("ok", flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""


def start(node: ServedNode, *words: str) -> "subprocess.Popen[str]":
    environment = {"PATH": os.defpath, **node.environment}
    return subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def running(node: ServedNode, *words: str) -> Iterator["subprocess.Popen[str]"]:
    process = start(node, *words)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def nvml_client(node: ServedNode, *addresses: str) -> tuple[str, ...]:
    return (sys.executable, "-c", NVML_CLIENT, *addresses)


def writer(node: ServedNode, path: Path, text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", WRITER, str(path), text)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"not true in time: {what}"
        time.sleep(0.02)


def write(path: Path, text: str) -> int:
    """The error of a write, 0 for success."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(file)
    return 0


def driver(node: ServedNode, index: int) -> str | None:
    link = node.device(index) / "driver"
    return link.readlink().name if link.is_symlink() else None


def unbind(node: ServedNode, index: int) -> int:
    return write(node.device(index) / "driver/unbind", node.address(index))


def to_vfio(node: ServedNode, index: int) -> None:
    assert write(node.device(index) / "driver_override", VFIO) == 0
    assert unbind(node, index) == 0
    assert write(node.sys / "bus/pci/drivers/vfio-pci/bind", node.address(index)) == 0


def wake_ups(node: ServedNode) -> int:
    """How often reads have woken the first GPU."""
    state = node.state
    bus = pci_records.read(state.snapshot(), state.description())
    return bus.states[node.address(0)].wake_ups


def procfs(node: ServedNode, index: int) -> Path:
    return node.roots.proc / "driver/nvidia/gpus" / node.address(index)


# The driver nvidia (A2)


def test_an_unbind_waits_for_the_users_of_the_gpu_and_leaves_traces_meanwhile(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    path = node.sys / "bus/pci/drivers/nvidia/unbind"
    with contextlib.ExitStack() as processes:
        user = processes.enter_context(running(node, *nvml_client(node, node.address(0))))
        assert line(user) == "4"
        words = writer(node, path, node.address(0))
        unbinding = processes.enter_context(running(node, *words))
        assert line(unbinding) == "open"
        wait_until(lambda: driver(node, 0) is None, "the link is gone")
        wait_until(lambda: state_of(unbinding.pid) == "D", "the writer is in state D")
        assert procfs(node, 0).is_dir()
        assert (node.roots.dev / "nvidia0").is_char_device()
        assert not (node.device(0) / "drm").exists()
        assert user.stdin is not None
        user.stdin.write("again\n")
        user.stdin.flush()
        assert line(user) == "15"  # GPU_IS_LOST
        with running(node, *nvml_client(node)) as other:
            assert line(other) == "3"
        assert unbind(node, 1) == 0  # another GPU, by the same file
        unbinding.kill()
        time.sleep(0.3)
        assert state_of(unbinding.pid) == "D"
        user.kill()
        unbinding.wait(PATIENCE_S)
    wait_until(lambda: not procfs(node, 0).exists(), "procfs has forgotten the GPU")
    assert not (node.roots.dev / "nvidia0").exists()
    assert driver(node, 0) is None


def test_a_foreign_process_that_has_the_number_open_is_a_user(
    served_node: MakeServedNode, tmp_path: Path
) -> None:
    """As a container does, with a node of its own and under any name."""
    node = served_node("t4")
    foreign = tmp_path / "any-name"
    os.mknod(foreign, 0o20666, os.makedev(node.description.majors.nvidia, 2))
    file = os.open(foreign, os.O_PATH)
    path = node.sys / "bus/pci/drivers/nvidia/unbind"
    with running(node, *writer(node, path, node.address(2))) as unbinding:
        assert line(unbinding) == "open"
        wait_until(lambda: driver(node, 2) is None, "the link is gone")
        time.sleep(0.3)
        assert unbinding.poll() is None
        os.close(file)
        assert line(unbinding) == "ok"


def test_a_mapping_keeps_the_gpu_in_use_after_its_descriptor_is_closed(
    served_node: MakeServedNode, tmp_path: Path
) -> None:
    """No node of the simulator can be mapped: a plain file has its path in another namespace."""
    node = served_node("t4")
    program = f"""
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
target = b"{node.roots.dev}/nvidia0"
assert libc.mount(b"{tmp_path}/plain", target, None, 0x1000, None) == 0
file = os.open(target, os.O_RDWR)
mapped = mmap.mmap(file, 4096)
os.close(file)
print("mapped", flush=True)
sys.stdin.read()
"""
    (tmp_path / "plain").write_bytes(bytes(mmap.PAGESIZE))
    path = node.sys / "bus/pci/drivers/nvidia/unbind"
    with running(node, sys.executable, "-c", program) as user:
        assert line(user) == "mapped"
        with running(node, *writer(node, path, node.address(0))) as unbinding:
            assert line(unbinding) == "open"
            time.sleep(0.5)
            assert unbinding.poll() is None
            user.kill()
            assert line(unbinding) == "ok"


def test_gpus_swap_their_minors_when_they_come_back_in_another_order(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    for index in (0, 1):
        assert unbind(node, index) == 0
    assert not (node.roots.dev / "nvidia0").exists()
    for index in (1, 0):
        assert write(node.sys / "bus/pci/drivers/nvidia/bind", node.address(index)) == 0
    said = {index: (procfs(node, index) / "information").read_text() for index in (0, 1)}
    assert "Device Minor: \t 1\n" in said[0]
    assert "Device Minor: \t 0\n" in said[1]
    with running(node, *nvml_client(node, node.address(0))) as user:
        assert line(user) == "4"
        number = os.makedev(node.description.majors.nvidia, 1)
        links = Path(f"/proc/{user.pid}/fd").iterdir()
        assert number in [link.stat().st_rdev for link in links]


def test_a_client_in_the_kernel_blocks_an_unbind_and_no_process_shows(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    state = ["--state", str(node.state_path)]
    simctl.output_of(["gpu", "kernel-client", "0", "on", *state])
    path = node.sys / "bus/pci/drivers/nvidia/unbind"
    with running(node, *writer(node, path, node.address(0))) as unbinding:
        assert line(unbinding) == "open"
        time.sleep(0.3)
        assert unbinding.poll() is None
        simctl.output_of(["gpu", "kernel-client", "0", "off", *state])
        assert line(unbinding) == "ok"


# Devices of vfio


def opened(process: "subprocess.Popen[str]") -> object:
    return json.loads(line(process))


def holding(node: ServedNode, *words: str) -> tuple[str, ...]:
    return (*node.vmm, *words)


HELD = {"viable": True, "failed": None, "errno": None}


def group_of(node: ServedNode, index: int) -> str:
    return (node.device(index) / "iommu_group").readlink().name


@pytest.mark.parametrize("cdev", [False, True], ids=["no cdev", "cdev"])
def test_a_device_has_a_node_of_its_own_where_the_kernel_makes_one(
    served_node: MakeServedNode, *, cdev: bool
) -> None:
    node = served_node("t4", node={**LOADED, "iommu": {"iommufd": True, "cdev": cdev}})
    assert (node.roots.dev / "iommu").is_char_device()
    to_vfio(node, 0)
    assert (node.device(0) / "vfio-dev/vfio0").is_dir()
    assert (node.roots.dev / "vfio/devices/vfio0").exists() == cdev


def test_an_open_cdev_blocks_an_unbind(served_node: MakeServedNode) -> None:
    node = served_node("t4", node=LOADED)
    to_vfio(node, 0)
    words = holding(node, "cdev", "vfio0", node.address(0))
    path = node.sys / "bus/pci/drivers/vfio-pci/unbind"
    with contextlib.ExitStack() as processes:
        vm = processes.enter_context(running(node, *words))
        assert opened(vm) == {"viable": None, "failed": None, "errno": None}
        unbinding = processes.enter_context(running(node, *writer(node, path, node.address(0))))
        assert line(unbinding) == "open"
        wait_until(lambda: state_of(unbinding.pid) == "S" and not driver(node, 0), "it waits")
        wait_until(lambda: not (node.roots.dev / "vfio/devices/vfio0").exists(), "no new opens")
        vm.send_signal(signal.SIGUSR1)  # the device is given back, the process goes on
        assert line(unbinding) == "ok"
        assert vm.poll() is None


def dev_with(node: ServedNode, directory: Path, *names: str) -> Path:
    """The /dev of a container with some nodes of vfio."""
    for name in names:
        target = directory / "vfio" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        found = (node.roots.dev / "vfio" / name).stat()
        os.mknod(target, found.st_mode, found.st_rdev)
    return directory


@pytest.mark.parametrize("backend", ["group", "cdev"])
def test_a_virtual_machine_opens_what_its_container_has(
    served_node: MakeServedNode, tmp_path: Path, backend: str
) -> None:
    node = served_node("t4", node=LOADED)
    to_vfio(node, 0)
    to_vfio(node, 1)
    group = group_of(node, 1)
    names = ("vfio", group) if backend == "group" else ("devices/vfio1",)
    dev = dev_with(node, tmp_path / "dev", *names)
    words = (node.vmm[0], "--sys", str(node.sys), "--dev", str(dev), "injected")
    path = node.sys / "bus/pci/drivers/vfio-pci/unbind"
    with contextlib.ExitStack() as processes:
        vm = processes.enter_context(running(node, *words))
        assert opened(vm) == {"viable": None, "failed": None, "errno": None}
        assert unbind(node, 0) == 0, "it has the other one only"
        unbinding = processes.enter_context(running(node, *writer(node, path, node.address(1))))
        assert line(unbinding) == "open"
        wait_until(lambda: not driver(node, 1), "it waits")
        time.sleep(0.3)
        assert unbinding.poll() is None
        vm.terminate()
        assert line(unbinding) == "ok"
        assert vm.wait(PATIENCE_S) == 0


def test_a_virtual_machine_without_what_it_needs_says_so_and_ends(
    served_node: MakeServedNode, tmp_path: Path
) -> None:
    node = served_node("t4", node=LOADED)
    to_vfio(node, 0)
    empty = dev_with(node, tmp_path / "empty")
    lacking = dev_with(node, tmp_path / "lacking", group_of(node, 0))
    for dev, failed, name in ((empty, "open", "ENODEV"), (lacking, "container", "ENOENT")):
        words = (node.vmm[0], "--sys", str(node.sys), "--dev", str(dev), "injected")
        done = subprocess.run(words, capture_output=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 1
        assert json.loads(done.stdout) == {"viable": None, "failed": failed, "errno": name}


def test_a_leaked_process_holds_the_device_until_it_is_killed(served_node: MakeServedNode) -> None:
    node = served_node("t4", node=LOADED)
    to_vfio(node, 0)
    group = group_of(node, 0)
    command = [node.vmm[0], *node.vmm[1:], "--leak", "device", group, node.address(0)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert json.loads(done.stdout) == HELD
    number = os.makedev(node.description.majors.vfio, int(group))
    (leaked,) = processes_with(number)
    os.kill(leaked, signal.SIGTERM)
    path = node.sys / "bus/pci/drivers/vfio-pci/unbind"
    with running(node, *writer(node, path, node.address(0))) as unbinding:
        assert line(unbinding) == "open"
        time.sleep(0.3)
        assert unbinding.poll() is None
        os.kill(leaked, signal.SIGKILL)
        assert line(unbinding) == "ok"


def processes_with(number: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if number in [os.stat(link).st_rdev for link in (process / "fd").iterdir()]:  # noqa: PTH116
                found.append(int(process.name))
    return found


def test_companions_are_bound_and_given_back_like_their_gpu(served_node: MakeServedNode) -> None:
    companions = {"gpus": [{"index": 0, "companions": ["audio", "usb", "ucsi"]}]}
    node = served_node("t4", node=LOADED, overrides=companions)
    devices = node.sys / "bus/pci/devices"
    beside = [f"{node.address(0)[:-1]}{number}" for number in (1, 2, 3)]
    links = sorted(path.name for path in node.device(0).glob("consumer:pci:*"))
    assert links == [f"consumer:pci:{address}" for address in beside]
    to_vfio(node, 0)
    group = group_of(node, 0)
    with running(node, *holding(node, "status", group)) as vm:
        assert opened(vm) == {"viable": False, "failed": None, "errno": None}
    for address in beside[:2]:
        assert write(devices / address / "driver/unbind", address) == 0
    for address in beside:
        assert write(devices / address / "driver_override", VFIO) == 0
        assert write(node.sys / "bus/pci/drivers_probe", address) == 0
    with running(node, *holding(node, "device", group, node.address(0))) as vm:
        assert opened(vm) == HELD
        assert write(devices / beside[0] / "driver_override", "\n") == 0
        assert write(devices / beside[0] / "driver/unbind", beside[0]) == 0
        assert write(node.sys / "bus/pci/drivers_probe", beside[0]) == errno.EINVAL
    for address in beside:
        assert write(devices / address / "driver_override", "\n") == 0
        if (devices / address / "driver").is_symlink():
            assert write(devices / address / "driver/unbind", address) == 0
        assert write(node.sys / "bus/pci/drivers_probe", address) == 0
    drivers = [devices / address / "driver" for address in beside]
    names = [link.readlink().name if link.is_symlink() else None for link in drivers]
    assert names == ["snd_hda_intel", "xhci_hcd", None]


# Modules


def test_modprobe_brings_what_vfio_needs_and_says_what_is_missing(
    served_node: MakeServedNode,
) -> None:
    node = served_node("gb200-nvl72", node={"vfio": {"missing": ["vfio_pci"]}})
    (alias,) = node.modules.glob(f"{release()}/modules.alias")
    assert " vfio_pci\n" not in alias.read_text()
    modprobe = node.kmod("modprobe")
    refused = subprocess.run(
        [*modprobe, "vfio-pci"], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert refused.returncode == 1
    assert "Module vfio-pci not found in directory /lib/modules/" in refused.stderr
    assert not (node.sys / "module/vfio").exists()
    subprocess.run([*modprobe, "nvgrace_gpu_vfio_pci"], check=True, timeout=PATIENCE_S)
    assert (node.sys / "bus/pci/drivers/nvgrace_gpu_vfio_pci/bind").exists()
    assert (node.roots.dev / "vfio/vfio").is_char_device()
    assert write(node.device(0) / "driver_override", "nvgrace_gpu_vfio_pci") == 0
    assert unbind(node, 0) == 0
    assert write(node.sys / "bus/pci/drivers_probe", node.address(0)) == 0
    assert driver(node, 0) == "nvgrace_gpu_vfio_pci"
    assert (node.device(0) / "vfio-dev/vfio0").is_dir()


def test_the_driver_nvidia_comes_and_goes_with_its_module(served_node: MakeServedNode) -> None:
    node = served_node("t4", node=LOADED)
    to_vfio(node, 0)
    state = ["--state", str(node.state_path)]
    simctl.output_of(["driver", "unload", *state])
    assert not (node.sys / "bus/pci/drivers/nvidia").exists()
    assert [driver(node, index) for index in range(4)] == [VFIO, None, None, None]
    simctl.output_of(["driver", "load", *state])
    assert [driver(node, index) for index in range(4)] == [VFIO, *["nvidia"] * 3]
    wait_until(lambda: not procfs(node, 0).exists() and procfs(node, 1).exists(), "procfs follows")


# Faults, and changes by others


def test_the_configuration_of_a_function_that_fell_off_reads_as_ones(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    config = node.device(0) / "config"
    assert config.read_bytes()[:2] == b"\xde\x10"
    incidents.set_pci_faults(node.state, node.address(0), Faults(config_reads_ff=True))
    assert set(config.read_bytes()) == {0xFF}
    incidents.set_pci_faults(node.state, node.address(0), Faults())
    assert config.read_bytes()[:2] == b"\xde\x10"


def test_a_read_of_the_configuration_wakes_a_function_from_d3cold_and_no_other_one(
    served_node: MakeServedNode,
) -> None:
    cold = served_node("t4", node={"vfio": {"loaded": True, "d3cold": True}})
    warm = served_node("t4", node=LOADED)
    for node, power in ((cold, "D3cold"), (warm, "D3hot")):
        to_vfio(node, 0)
        (node.device(0) / "aer_dev_fatal").read_text()
        assert (node.device(0) / "power_state").read_text().strip() == power
        assert wake_ups(node) == 0
        assert (node.device(0) / "config").read_bytes()[:2] == b"\xde\x10"
        assert (node.device(0) / "current_link_width").read_text() == "16\n"
    assert (wake_ups(cold), wake_ups(warm)) == (2, 0)


def test_a_function_is_awake_while_a_process_has_it_open(served_node: MakeServedNode) -> None:
    node = served_node("t4", node={"vfio": {"loaded": True, "d3cold": True}})
    to_vfio(node, 0)
    power, speed = (node.device(0) / name for name in ("power_state", "current_link_speed"))
    status = node.device(0) / "power/runtime_status"
    assert (power.read_text(), status.read_text()) == ("D3cold\n", "suspended\n")
    with running(node, *holding(node, "device", group_of(node, 0), node.address(0))) as machine:
        assert line(machine)
        assert (power.read_text(), status.read_text()) == ("D0\n", "active\n")
        assert speed.read_text() == "8.0 GT/s PCIe\n"
        assert wake_ups(node) == 0
    wait_until(lambda: power.read_text() == "D3cold\n", "the function sleeps again")


def test_simctl_lets_a_link_be_narrow_and_counts_errors(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    state = ["--state", str(node.state_path)]
    simctl.output_of(["pci", "error", node.address(0), "fatal", "--count", "2", *state])
    simctl.output_of(["pci", "fault", node.address(0), "--link-width", "8", *state])
    width, errors = (node.device(0) / name for name in ("current_link_width", "aer_dev_fatal"))
    wait_until(lambda: width.read_text() == "8\n", "the link is narrow")
    wait_until(lambda: "TOTAL_ERR_FATAL 2" in errors.read_text(), "two errors are counted")
    with pytest.raises(simctl.ERRORS, match="there is no PCI function"):
        simctl.output_of(["pci", "error", "0000:00:00.0", "fatal", *state])


def test_simctl_writes_to_the_same_files(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    state = ["--state", str(node.state_path)]
    simctl.output_of(["gpu", "unbind", "0", *state])
    assert driver(node, 0) is None
    simctl.output_of(["gpu", "bind", "0", *state])
    assert driver(node, 0) == "nvidia"
    assert write(node.device(0) / "driver_override", VFIO) == 0
    simctl.output_of(["gpu", "unbind", "0", *state])
    with pytest.raises(simctl.ERRORS, match="No such device"):
        simctl.output_of(["gpu", "bind", "0", *state])


def test_a_removed_gpu_is_gone_until_a_rescan(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    info = f"""
import ctypes, pynvml
pynvml.nvmlInit()
info = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByPciBusId("{node.address(1)}"))
pynvml.nvmlDeviceModifyDrainState(info, 1)
pynvml.nvmlDeviceRemoveGpu(info)
"""
    with running(node, sys.executable, "-c", info) as admin:
        assert admin.wait(PATIENCE_S) == 0
    assert not node.device(1).exists()
    assert write(node.sys / "bus/pci/rescan", "1") == 0
    assert driver(node, 1) == "nvidia"


# The file system itself


def test_controls_are_as_sysfs_has_them(served_node: MakeServedNode) -> None:
    node = served_node("dgx-h100", node=LOADED)
    device = node.device(0)
    modes = {name: oct((device / name).stat().st_mode & 0o777) for name in ("remove", "reset")}
    assert modes == {"remove": "0o200", "reset": "0o200"}
    assert write(device / "reset", "1") == 0
    assert write(device / "reset_method", "bus\n") == 0
    assert (device / "reset_method").read_text() == "bus\n"
    assert write(device / "reset_method", "by hand") == errno.EINVAL
    assert write(device / "sriov_numvfs", "4") == errno.ENOENT
    assert write(device / "sriov_numvfs", "99") == errno.ERANGE
    assert write(device / "numa_node", "1") == errno.EIO
    assert write(node.sys / "bus/pci/drivers_probe", "0000:77:00.0") == errno.ENODEV
    assert ".nvdra-sim" not in os.listdir(node.sys)  # noqa: PTH208
    names = {path.name for path in (node.sys / "bus/pci/devices").iterdir()}
    assert {gpu.bus_id for gpu in node.description.gpus} <= names


@contextlib.contextmanager
def waiting_unbind(node: ServedNode) -> Iterator["subprocess.Popen[str]"]:
    """A process that unbinds a GPU which a client in the kernel keeps."""
    incidents.set_kernel_client(node.state, node.state.gpu("0"), uses=True)
    path = node.sys / "bus/pci/drivers/nvidia/unbind"
    with running(node, *writer(node, path, node.address(0))) as unbinding:
        assert line(unbinding) == "open"
        wait_until(lambda: driver(node, 0) is None, "the unbind waits")
        yield unbinding


def test_the_end_of_the_server_answers_all_who_wait(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    with waiting_unbind(node) as unbinding:
        os.kill(node.server, signal.SIGTERM)
        assert line(unbinding) == str(errno.EIO)
        unbinding.wait(PATIENCE_S)
    wait_until(lambda: connection.number(node.sys) is None, "the mount is gone")


def test_a_server_that_hangs_can_be_ended_with_all_who_wait_for_it(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    os.kill(node.server, signal.SIGSTOP)
    try:
        command = [sys.executable, "-c", f"open({str(node.device(0) / 'vendor')!r})"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as reader:
            time.sleep(0.3)
            assert reader.poll() is None
            abort = [sys.executable, "-m", "nvdra_sim.sysfs_server.main", "--abort", str(node.sys)]
            subprocess.run(abort, check=True, timeout=PATIENCE_S)
            assert reader.wait(PATIENCE_S) != 0
    finally:
        os.kill(node.server, signal.SIGCONT)
    assert connection.number(node.sys) is None


def test_a_node_has_one_server(served_node: MakeServedNode, tmp_path: Path) -> None:
    node = served_node("t4")
    command = [sys.executable, "-m", "nvdra_sim.sysfs_server.main", "--state", str(node.state_path)]
    done = subprocess.run(
        [*command, str(tmp_path / "other")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert f"another server answers at {node.sys}" in done.stderr


def test_a_killed_server_leaves_no_process_waiting(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    with waiting_unbind(node) as unbinding:
        os.kill(node.server, signal.SIGKILL)
        assert int(line(unbinding)) in (errno.ECONNABORTED, errno.ENOTCONN)
    assert connection.abort(node.sys)


def test_a_server_answers_where_one_was_killed_and_leaves_its_mount_to_the_next(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    os.kill(node.server, signal.SIGKILL)
    wait_until(lambda: not clients.has_sysfs_server(node.state), "its lock is gone")
    command = [sys.executable, "-m", "nvdra_sim.sysfs_server.main", "--state", str(node.state_path)]
    for _ in range(2):
        with pytest.raises(OSError, match="not connected"):
            driver(node, 0)
        with running(node, *command, str(node.sys), "--keep-mount") as server:
            assert line(server).startswith("mounted ")
            assert driver(node, 0) == "nvidia"
            server.terminate()
            assert server.wait(PATIENCE_S) == 0
    for _ in range(3):
        assert connection.abort(node.sys)
    assert connection.number(node.sys) is None


def test_a_server_begins_with_files_as_the_bus_is(
    served_node: MakeServedNode, tmp_path: Path
) -> None:
    """After one that was killed, and after a boot meanwhile."""
    node = served_node("t4", node=LOADED)
    to_vfio(node, 0)
    group = group_of(node, 0)
    os.kill(node.server, signal.SIGKILL)
    wait_until(lambda: not clients.has_sysfs_server(node.state), "its lock is gone")
    assert connection.abort(node.sys)
    incidents.reboot(node.state)
    assert (node.roots.dev / "vfio" / group).exists()
    again = tmp_path / "again"
    command = [sys.executable, "-m", "nvdra_sim.sysfs_server.main", "--state", str(node.state_path)]
    with running(node, *command, str(again)) as server:
        assert line(server).startswith("mounted ")
        device = again / "bus/pci/devices" / node.address(0)
        assert (device / "driver").readlink().name == "nvidia"
        assert (device / "driver_override").read_text() == "(null)\n"
        assert not (device / "vfio-dev").exists()
        assert not (node.roots.dev / "vfio" / group).exists()
        assert procfs(node, 0).is_dir()
        server.terminate()
        assert server.wait(PATIENCE_S) == 0


def test_the_plain_files_cannot_be_mounted_over(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    command = [sys.executable, "-m", "nvdra_sim.sysfs_server.main", "--state", str(node.state_path)]
    done = subprocess.run(
        [*command, str(node.roots.sys)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "has the plain files" in done.stderr


def test_a_single_file_can_be_bound_elsewhere(served_node: MakeServedNode, tmp_path: Path) -> None:
    """As container runtimes do with files of sysfs."""
    node = served_node("t4")
    target = tmp_path / "vendor"
    target.touch()
    libc = ctypes.CDLL(None, use_errno=True)
    source = str(node.device(0).resolve() / "vendor").encode()
    assert libc.mount(source, str(target).encode(), None, 0x1000, None) == 0
    try:
        assert target.read_text() == "0x10de\n"
    finally:
        assert libc.umount2(str(target).encode(), 2) == 0
