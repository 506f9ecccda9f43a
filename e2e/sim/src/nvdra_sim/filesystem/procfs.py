# SPDX-License-Identifier: Apache-2.0
"""The files of the NVIDIA kernel modules below /proc.

Source: docs/reference/nvml-simulator.md §14.2, §14.4.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from platform import machine

from nvdra_sim.description import Gpu, NodeDescription
from nvdra_sim.filesystem.trees import Directory, Entry, File, Tree, text

CONFIG_CAP = 1
MONITOR_CAP = 2
FABRIC_MGMT_CAP = 0
FABRIC_IMEX_CAP = 4323
FIRST_MIG_CAP = 3
MIG_GPUS, MIG_GPU_INSTANCES, MIG_COMPUTE_INSTANCES = 32, 15, 8

# What any kernel of our time registers; the rest of /proc/devices is ours.
CHARACTER_MAJORS = {
    1: ("mem",),
    4: ("/dev/vc/0", "tty", "ttyS"),
    5: ("/dev/tty", "/dev/console", "/dev/ptmx"),
    10: ("misc",),
    13: ("input",),
    128: ("ptm",),
    136: ("pts",),
}
BLOCK_MAJORS = {7: "loop", 8: "sd", 259: "blkext"}

PARAMETERS: dict[str, int | str] = {
    "ResmanDebugLevel": 4294967295,
    "RmLogonRC": 1,
    "ModifyDeviceFiles": 1,
    "DeviceFileUID": 0,
    "DeviceFileGID": 0,
    "DeviceFileMode": 438,
    "InitializeSystemMemoryAllocations": 1,
    "UsePageAttributeTable": 4294967295,
    "EnableMSI": 1,
    "EnablePCIeGen3": 0,
    "MemoryPoolSize": 0,
    "KMallocHeapMaxSize": 0,
    "VMallocHeapMaxSize": 0,
    "IgnoreMMIOCheck": 0,
    "EnableStreamMemOPs": 0,
    "EnableUserNUMAManagement": 1,
    "NvLinkDisable": 0,
    "RmProfilingAdminOnly": 1,
    "PreserveVideoMemoryAllocations": 0,
    "EnableS0ixPowerManagement": 0,
    "S0ixPowerManagementVideoMemoryThreshold": 256,
    "DynamicPowerManagement": 3,
    "DynamicPowerManagementVideoMemoryThreshold": 200,
    "RegisterPCIDriver": 1,
    "EnablePCIERelaxedOrderingMode": 0,
    "EnableResizableBar": 0,
    "EnableGpuFirmware": 18,
    "EnableGpuFirmwareLogs": 2,
    "RmNvlinkBandwidthLinkCount": 0,
    "EnableDbgBreakpoint": 0,
    "OpenRmEnableUnsupportedGpus": 1,
    "DmaRemapPeerMmio": 1,
    "ImexChannelCount": 2048,
    "CreateImexChannel0": 0,
    "GrdmaPciTopoCheckOverride": 0,
    "CoherentGPUMemoryMode": "",
    "RegistryDwords": "",
    "RegistryDwordsPerDevice": "",
    "RmMsg": "",
    "GpuBlacklist": "",
    "TemporaryFilePath": "",
    "ExcludedGpus": "",
}
"""What `params` says of a node that sets nothing, in the order of branch 580."""

POWER = """\
Runtime D3 status:          Disabled by default
Video Memory:               Active

GPU Hardware Support:
 Video Memory Self Refresh: Not Supported
 Video Memory Off:          Not Supported

S0ix Power Management:
 Platform Support:          Not Supported
 Status:                    Disabled

Notebook Dynamic Boost:     Not Supported"""


def tree(node: NodeDescription, minors: Mapping[int, int] | None = None) -> Tree:
    """All files below the proc root. Without the kernel module, only those of the kernel.

    Args:
        node: The node.
        minors: The index and minor of each GPU that the driver has; by default, as after a boot.
    """
    entries: dict[str, Entry] = {
        "devices": _devices(node),
        "sys/kernel/random/boot_id": text(node.boot_id, 0o444),
    }
    if not node.driver.module_loaded:
        return entries
    entries |= _driver(node)
    entries |= _capabilities()
    bound = {gpu.index: gpu.minor for gpu in node.gpus if gpu.bound_driver == "nvidia"}
    entries |= bound_gpus_tree(node, bound if minors is None else minors)
    for gpu in node.gpus if minors is None else ():
        if gpu.index in bound:
            entries |= _initial_capability_files(gpu)
    for number in range(node.nvswitches):
        entries[f"driver/nvidia-nvswitch/devices/{number}"] = text(f"Device minor: {number}", 0o444)
    return entries


def bound_gpus_tree(node: NodeDescription, minors: Mapping[int, int]) -> Tree:
    """The directories of the GPUs that the driver has, or is leaving.

    Args:
        node: The node.
        minors: The index of each of these GPUs, with the minor number that it has now.
    """
    entries: dict[str, Entry] = {}
    for gpu in node.gpus:
        if gpu.index in minors:
            entries |= _gpu(gpu.model_copy(update={"minor": minors[gpu.index]}), node)
    return entries


def mig_capability_files(
    minor: int, instances: Iterable[tuple[int, Iterable[int]]]
) -> dict[str, Entry]:
    """The access files of MIG instances, which exist as long as the instances.

    Args:
        minor: The minor number of the GPU.
        instances: The ids of GPU instances, each with those of its compute instances.
    """
    entries: dict[str, Entry] = {}
    for number, compute in instances:
        directory = f"driver/nvidia/capabilities/gpu{minor}/mig/gi{number}"
        cap = gpu_instance_cap(minor, number)
        entries[f"{directory}/access"] = _capability(cap, 0o444)
        for each in compute:
            entries[f"{directory}/ci{each}/access"] = _capability(cap + 1 + each, 0o444)
    return entries


def _initial_capability_files(gpu: Gpu) -> dict[str, Entry]:
    made = gpu.mig.instances if gpu.mig else ()
    ids = ((each.id, [compute.id for compute in each.compute]) for each in made)
    return mig_capability_files(gpu.minor, ids)


def gpu_instance_cap(minor: int, gpu_instance: int) -> int:
    """The minor of a GPU instance's capability (§7.9). Its compute instance c has 1 + c more."""
    per_gpu = MIG_GPU_INSTANCES * (1 + MIG_COMPUTE_INSTANCES)
    return FIRST_MIG_CAP + per_gpu * minor + (1 + MIG_COMPUTE_INSTANCES) * gpu_instance


def _devices(node: NodeDescription) -> File:
    majors = CHARACTER_MAJORS | {node.majors.drm: ("drm",)}
    if node.driver.module_loaded:
        gpu_major = node.control_node.major
        gpu_names = ("nvidia", "nvidiactl", "nvidia-modeset")
        majors[gpu_major] = (*majors.get(gpu_major, ()), *gpu_names)
        majors[node.majors.nvidia_caps] = ("nvidia-caps",)
        majors[node.majors.nvidia_caps_imex_channels] = ("nvidia-caps-imex-channels",)
        if gpu_major != node.majors.nvidia:
            majors[node.majors.nvidia] = ("nvidia-modeset",)
            majors[gpu_major] = majors[gpu_major][:-1]
    if node.driver.uvm_loaded:
        majors[node.majors.nvidia_uvm] = ("nvidia-uvm",)
    lines = ["Character devices:"]
    lines += [f"{major:3d} {name}" for major in sorted(majors) for name in majors[major]]
    lines += ["", "Block devices:"]
    lines += [f"{major:3d} {name}" for major, name in BLOCK_MAJORS.items()]
    return text("\n".join(lines), 0o444)


def _driver(node: NodeDescription) -> dict[str, Entry]:
    parameters = PARAMETERS | {
        "ImexChannelCount": node.imex.channel_count,
        "CreateImexChannel0": int(node.imex.create_channel0),
        "ExcludedGpus": ",".join(gpu.uuid for gpu in node.gpus if gpu.excluded),
    }
    lines = [
        f'{name}: "{value}"' if isinstance(value, str) else f"{name}: {value}"
        for name, value in parameters.items()
    ]
    version = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {machine()}  {node.driver.version}"
        "  Release Build  (nvdra-sim)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)"
    )
    return {
        "driver/nvidia/version": text(version, 0o444),
        "driver/nvidia/params": text("\n".join(lines), 0o444),
        "driver/nvidia/registry": text('Binary: ""'),
        "driver/nvidia/suspend": text("suspend hibernate resume"),
        "driver/nvidia/suspend_depth": text("default modeset uvm"),
        "driver/nvidia-nvlink/permissions": text("DeviceFileMode: 438", 0o444),
        "driver/nvidia-nvswitch/permissions": text("DeviceFileMode: 438", 0o444),
        "driver/nvidia/gpus": Directory(0o555),
        "driver/nvidia/patches": Directory(0o555),
    }


def _gpu(gpu: Gpu, node: NodeDescription) -> dict[str, Entry]:
    lines = (
        f"Model: \t\t {gpu.name}",
        f"IRQ:   \t\t {interrupt_number(gpu)}",
        f"GPU UUID: \t {gpu.uuid}",
        f"Video BIOS: \t {gpu.vbios.lower()}",
        "Bus Type: \t PCIe",
        "DMA Size: \t 52 bits",
        "DMA Mask: \t 0xfffffffffffff",
        f"Bus Location: \t {gpu.bus_id}",
        f"Device Minor: \t {gpu.minor}",
        f"GPU Firmware: \t {node.driver.version if gpu.gsp else 'N/A'}",
        f"GPU Excluded:\t {'Yes' if gpu.excluded else 'No'}",
    )
    entries: dict[str, Entry] = {
        f"driver/nvidia/gpus/{gpu.bus_id}/information": text("\n".join(lines), 0o444),
        f"driver/nvidia/gpus/{gpu.bus_id}/power": text(POWER, 0o444),
        f"driver/nvidia/gpus/{gpu.bus_id}/registry": text('Binary: ""'),
    }
    if gpu.memory_numa_node is not None:
        status = f"Node:\t\t{gpu.memory_numa_node}\nStatus:\t\tonline"
        entries[f"driver/nvidia/gpus/{gpu.bus_id}/numa_status"] = text(status)
    return entries


def interrupt_number(gpu: Gpu) -> int:
    """The interrupt number of the GPU, in procfs and sysfs."""
    return 18 + gpu.index


def _capabilities() -> dict[str, Entry]:
    return {
        "driver/nvidia/capabilities/mig/config": _capability(CONFIG_CAP, 0o400),
        "driver/nvidia/capabilities/mig/monitor": _capability(MONITOR_CAP, 0o444),
        "driver/nvidia/capabilities/fabric-imex-mgmt": _capability(FABRIC_IMEX_CAP, 0o400),
        "driver/nvidia-nvlink/capabilities/fabric-mgmt": _capability(FABRIC_MGMT_CAP, 0o400),
        "driver/nvidia-caps/mig-minors": _mig_minors(),
        "driver/nvidia-caps/nvlink-minors": text(f"fabric-mgmt {FABRIC_MGMT_CAP}", 0o444),
        "driver/nvidia-caps/sys-minors": text(f"fabric-imex-mgmt {FABRIC_IMEX_CAP}", 0o444),
    }


def _capability(minor: int, mode: int) -> File:
    content = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1"
    return text(content, 0o444)


@functools.cache
def _mig_minors() -> File:
    """All possible keys, whether or not the instance exists."""
    lines = [f"config {CONFIG_CAP}", f"monitor {MONITOR_CAP}"]
    for minor in range(MIG_GPUS):
        for instance in range(MIG_GPU_INSTANCES):
            cap = gpu_instance_cap(minor, instance)
            lines.append(f"gpu{minor}/gi{instance}/access {cap}")
            lines += [
                f"gpu{minor}/gi{instance}/ci{compute}/access {cap + 1 + compute}"
                for compute in range(MIG_COMPUTE_INSTANCES)
            ]
    return text("\n".join(lines), 0o444)
