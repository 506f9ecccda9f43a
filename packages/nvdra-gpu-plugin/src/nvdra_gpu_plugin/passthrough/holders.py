# SPDX-License-Identifier: Apache-2.0
"""Which processes of the node have GPUs open, in any container and by any name.

By the numbers of device nodes: the driver's and DRM's while a GPU is on the NVIDIA driver, those of
vfio while a virtual machine may have it. The host's procfs is needed, not its mounts. What only the
kernel has, a console or nvidia-peermem, is in no process.

A look takes 0.17 s of a processor for 20,000 descriptors (`python -m bench.holders`), in a
child process (`process_files`). It blocks: it runs on a worker's thread.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api import texts
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import PciAddress, PodUID
from nvdra_runtime.node.host import Host

from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.passthrough import holder_remedies, process_files
from nvdra_gpu_plugin.passthrough.pci_functions import PciFunction

NVIDIA_MAJOR: Final = 195
"""Registered in Documentation/admin-guide/devices.txt of Linux."""
NVIDIA_DRIVERS: Final = frozenset({"nvidia", "nvidia-frontend"})
"""What `/proc/devices` calls the driver of `/dev/nvidiaN`."""
TIMEOUT_S: Final = 5.0
END_TIMEOUT_S: Final = 1.0
MAX_COMMAND: Final = 64
"""Characters of a command in messages. The kernel keeps 15 bytes of a name."""

_POD: Final = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?:/|$)"
)
"""The part of a cgroup's path that the kubelet names after a pod: `pod<uid>`, and with systemd's
cgroups `kubepods-burstable-pod<uid with _>.slice`. The UID of a static pod is a hash. Source:
pkg/kubelet/cm/pod_container_manager_linux.go of Kubernetes."""
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")


class Use(NamedTuple):
    """One use of a device by a process.

    Attributes:
        pid: The process, in the PID namespace of the procfs. 0 for one that cannot be read.
        how: `open`, `mapped`, `vfio-device` or `unreadable`.
        number: The device's number, `195:0`; empty for a vfio device without a node.
        name: The path by which the process has it; the PCI address of a vfio device, if the kernel
            says it.
    """

    pid: int
    how: str
    number: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """The device nodes of one GPU.

    Attributes:
        pci: The GPU.
        numbers: The numbers of all of them, `195:0`, with how they are called.
        minor: The N of `/dev/nvidiaN`; None if the NVIDIA driver does not have it.
        group: The number of `/dev/vfio/<group>`; None if vfio does not have it.
    """

    pci: PciAddress
    numbers: Mapping[str, str]
    minor: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a GPU open.

    Attributes:
        pid: The process, in the node's PID namespace.
        command: The name of its program, as the kernel has it.
        uses: What it has of the GPU, such as `/dev/nvidia0`.
        keeps_driver: Whether an unbind would wait for it. It would not for one that has only the
            group of vfio open, and no device of it yet.
        pod: The pod that it runs in; None if it runs in none.
        container: The ID of its container; empty if it runs in none.
    """

    pid: int
    command: str
    uses: tuple[str, ...]
    keeps_driver: bool = True
    pod: PodUID | None = None
    container: str = ""

    def __str__(self) -> str:
        """Return `<command> (pid <pid>)`."""
        return f"{self.command} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds GPUs.

    Attributes:
        by_gpu: The processes that have a GPU open; only GPUs that some process has.
        unreadable: How many processes could not be looked at. The plugin needs the capability
            CAP_SYS_PTRACE, which privileged containers have.
    """

    by_gpu: Mapping[PciAddress, tuple[Holder, ...]]
    unreadable: int = 0


def nodes_of(host: Host, function: PciFunction, minor: int | None) -> DeviceNodes:
    """The device nodes of a GPU as it is now.

    Args:
        host: Where sysfs, procfs and the device nodes are.
        function: The GPU.
        minor: The N of its `/dev/nvidiaN` (`installation.gpu_facts`); None if it has none.
    """
    numbers: dict[str, str] = {}
    if minor is not None:
        numbers |= {f"{major}:{minor}": f"/dev/nvidia{minor}" for major in _nvidia_majors(host)}
    directory = host.sys / "bus/pci/devices" / function.pci
    for path in _entries(directory / "drm"):
        if number := _number(path, host.dev / "dri" / path.name):
            numbers[number] = f"/dev/dri/{path.name}"
    group = None
    if function.is_on_vfio and function.group is not None:
        name = str(function.group)
        group = _number(host.sys / "class/vfio" / name, host.dev / "vfio" / name)
        if group:
            numbers[group] = f"/dev/vfio/{name}"
    if function.vfio_device is not None:
        name = function.vfio_device
        device = _number(directory / "vfio-dev" / name, host.dev / "vfio/devices" / name)
        if device:
            numbers[device] = f"/dev/vfio/devices/{name}"
    return DeviceNodes(function.pci, numbers, minor, group)


def of_gpu(host: Host, processes: Path, function: PciFunction) -> tuple[Holder, ...]:
    """The processes that have a GPU open, apart from this one.

    Args:
        host: The node's files.
        processes: The node's procfs, with all its processes.
        function: The GPU.

    Raises:
        RetryableError: As `find`.
    """
    minor = installation.gpu_facts(host, function.pci).minor
    nodes = nodes_of(host, function, minor)
    return find(replace(host, proc=processes), [nodes]).by_gpu.get(function.pci, ())


def find(host: Host, gpus: Sequence[DeviceNodes], timeout_s: float = TIMEOUT_S) -> Holders:
    """Find the processes that have GPUs open, apart from this one.

    Raises:
        RetryableError: `VfioDeviceBusy`: it cannot be found out.
    """
    groups = {
        number
        for path in _entries(host.sys / "class/vfio")
        if (number := _number(path, host.dev / "vfio" / path.name))
    }
    wanted = groups.union(*(gpu.numbers for gpu in gpus))
    names = {f"nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None}
    found = _uses(host, wanted, names, timeout_s)
    by_process: defaultdict[int, list[Use]] = defaultdict(list)
    for use in found:
        by_process[use.pid].append(use)
    unreadable = len(by_process.pop(0, ()))
    by_gpu = {gpu.pci: tuple(_holders(host, gpu, groups, by_process)) for gpu in gpus}
    return Holders({pci: holders for pci, holders in by_gpu.items() if holders}, unreadable)


def busy(pci: PciAddress, holders: Sequence[Holder]) -> RetryableError:
    """The error of a GPU that processes have open.

    Tenants see the processes, but not the pods, which may be of other namespaces.
    """
    named = ", ".join(map(str, holders))
    pods = ", ".join(
        f"{holder} with {' and '.join(holder.uses)}"
        + (f" of pod {holder.pod}, container {holder.container}" if holder.pod else " of the host")
        for holder in holders
    )
    return RetryableError(
        Reason.VFIO_DEVICE_BUSY,
        f"GPU {pci} is in use on the node: {named}",
        holder_remedies.remedy(holder.command for holder in holders),
        operator_message=f"GPU {pci} is in use on the node: {pods}",
        pci=pci,
        holder=named,
        command=holders[0].command,
    )


def pod_of(cgroup: str) -> tuple[PodUID | None, str]:
    """The pod and the container of a process, by its `/proc/<pid>/cgroup` (v1 or v2)."""
    for line in cgroup.splitlines():
        path = line.partition(":")[2].partition(":")[2]
        if found := _POD.search(path):
            container = _CONTAINER.search(path, found.end("uid"))
            return PodUID(found["uid"].replace("_", "-")), container[0] if container else ""
    return None, ""


def _holders(
    host: Host,
    gpu: DeviceNodes,
    groups: Collection[str],
    by_process: Mapping[int, Sequence[Use]],
) -> Iterator[Holder]:
    for pid, found in sorted(by_process.items()):
        opened = {use.number for use in found if use.number in groups}
        uses = {name: keeps for use in found for name, keeps in _names(gpu, use, opened)}
        if not uses:
            continue
        pod, container = pod_of(_text(host.proc / str(pid) / "cgroup"))
        command = texts.shortened(_text(host.proc / str(pid) / "comm").strip(), MAX_COMMAND)
        yield Holder(
            pid=pid,
            command=texts.encodable(command) or "?",
            uses=tuple(sorted(uses)),
            keeps_driver=any(uses.values()),
            pod=pod,
            container=container,
        )


def _names(gpu: DeviceNodes, use: Use, opened: Collection[str]) -> Iterator[tuple[str, bool]]:
    """What a use is of this GPU, and whether an unbind would wait for it; nothing if it is not.

    Before Linux 6.18, the kernel does not say which device the descriptor of a vfio device is. It
    is of the groups that the process has open; of one that has none, it may be of any.
    """
    if use.how == "vfio-device":
        is_of_gpu = use.name == gpu.pci if use.name else not opened or gpu.group in opened
        if gpu.group is not None and is_of_gpu:
            yield "a vfio device", True
    elif use.number in gpu.numbers:
        name = gpu.numbers[use.number]
        shown = name if use.how == "open" else f"a mapping of {name}"
        yield shown, use.number != gpu.group
    elif use.how == "mapped" and not use.number and use.name.endswith(f"/dev/nvidia{gpu.minor}"):
        yield f"a mapping of /dev/nvidia{gpu.minor}", True


def _uses(
    host: Host, numbers: Collection[str], names: Collection[str], timeout_s: float
) -> list[Use]:
    program = str(Path(process_files.__file__))
    lists = (_own_pid(host), *(",".join(sorted(words)) for words in (numbers, names)))
    command = [sys.executable, "-I", "-S", program, str(host.proc), *lists]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise _unknown(str(error)) from error
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a look that cannot be killed is left behind
            process.communicate(timeout=END_TIMEOUT_S)
        raise _unknown(f"no answer in {timeout_s:.0f} s") from error
    if process.returncode:
        last = os.fsdecode(err).strip().rpartition("\n")[2]
        raise _unknown(f"the program ended with {process.returncode}: {last}")
    lines = (os.fsdecode(line).split("\t") for line in out.splitlines())
    return [Use(int(pid), how, number, name) for pid, how, number, name in lines]


def _unknown(why: str) -> RetryableError:
    return RetryableError(
        Reason.VFIO_DEVICE_BUSY,
        f"it cannot be found out which processes use the GPU: {why}",
        "see on the node whether a process in /proc cannot be looked at",
    )


def _own_pid(host: Host) -> str:
    """This process, in the PID namespace of the host's procfs."""
    try:
        return (host.proc / "self").readlink().name
    except OSError:  # not a procfs
        return ""


def _nvidia_majors(host: Host) -> list[int]:
    """The major numbers of `/dev/nvidiaN`, from `/proc/devices`."""
    lines = (line.split() for line in _text(host.proc / "devices").splitlines())
    found = [int(words[0]) for words in lines if len(words) == 2 and words[1] in NVIDIA_DRIVERS]
    return found or [NVIDIA_MAJOR]


def _number(directory: Path, node: Path) -> str | None:
    """The number of a device as sysfs says it, or its node; None if neither is there."""
    if text := _text(directory / "dev").strip():
        return text
    try:
        found = node.stat()
    except OSError:
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if found.st_rdev else None


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
