# SPDX-License-Identifier: Apache-2.0
"""The PCI devices of the node in sysfs (docs/reference/nvml-simulator.md §14.5)."""

from __future__ import annotations

import os
from functools import lru_cache

from nvdra_sim.description import Gpu, NodeDescription
from nvdra_sim.filesystem.procfs import interrupt_number
from nvdra_sim.filesystem.trees import Directory, Entry, File, Link, Tree, text
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci import functions, health_files, modules
from nvdra_sim.pci.bus import Bus, FunctionState, Phase
from nvdra_sim.pci.functions import PciFunction

RESOURCES = 13  # lines of a PCI function's `resource` file
MEMORY_FLAGS = 0x14220C  # 64-bit, prefetchable memory
MIB = 1 << 20
CPUS_PER_NUMA_NODE = 56
DRIVER_CONTROLS = ("bind", "unbind", "new_id", "remove_id")
IOMMU_DOMAIN = "DMA-FQ"


def tree(node: NodeDescription, bus: Bus | None = None) -> Tree:
    """All files below the sys root; by default, as after a boot."""
    now = pci_bus.at_boot(node) if bus is None else bus
    entries: dict[str, Entry] = {
        "bus/pci/devices": Directory(),
        "bus/pci/drivers": Directory(),
        "bus/pci/drivers_probe": File(b"", 0o200),
        "bus/pci/rescan": File(b"", 0o200),
        "module/firmware_class/parameters/path": text(""),
    }
    for driver in now.drivers:
        for control in DRIVER_CONTROLS:
            entries[f"bus/pci/drivers/{driver}/{control}"] = File(b"", 0o200)
    entries |= _modules(now)
    if node.iommu.enabled:
        entries["kernel/iommu_groups"] = Directory()
    entries |= _numa_nodes(node)
    for function in now.functions:
        entries |= function_tree(function, now)
    entries |= _vfio_groups(now)
    return entries


def function_tree(function: PciFunction, bus: Bus) -> Tree:
    """The files of one function; none while it is off the bus."""
    state = bus.state(function.address)
    if state is None:
        return {}
    directory = function.directory
    entries: dict[str, Entry] = {
        f"{directory}/{name}": text(value, 0o444) for name, value in _facts(function).items()
    }
    entries |= _controls(function, state)
    for name, content in health_files.contents(function, state, is_open=False).items():
        entries[f"{directory}/{name}"] = File(content, 0o644 if name == "config" else 0o444)
    entries[f"{directory}/resource"] = _resource(function.gpu)
    entries[f"{directory}/subsystem"] = Link(_from(directory, "bus/pci"))
    entries[f"bus/pci/devices/{function.address}"] = Link(f"../../../{directory}")
    entries |= _driver_links(function, state)
    entries |= _iommu_links(function)
    entries |= _companion_links(function, bus)
    if function.vendor == functions.MELLANOX:
        entries |= _adapter(function)
    return entries


def gpu_tree(node: NodeDescription, gpu: Gpu) -> Tree:
    """The files of one GPU, which disappear when it is unplugged."""
    bus = pci_bus.at_boot(node)
    found = bus.function(gpu.bus_id)
    return {} if found is None else function_tree(found, bus)


def drm_card(gpu: Gpu) -> int:
    """The number of `/dev/dri/card<N>`. card0 is the server's management display."""
    return gpu.index + 1


def drm_render(gpu: Gpu) -> int:
    """The number of `/dev/dri/renderD<N>`."""
    return gpu.index + 128


def _modules(bus: Bus) -> dict[str, Entry]:
    entries: dict[str, Entry] = {f"module/{name}": Directory() for name in bus.modules}
    if "vfio" in bus.modules:
        entries["module/vfio/parameters/enable_unsafe_noiommu_mode"] = text("N", 0o644)
    for name in bus.modules & set(modules.DRIVERS):
        entries[f"bus/pci/drivers/{modules.DRIVERS[name]}/module"] = Link(
            f"../../../../module/{name}"
        )
    if bus.has_nvidia:
        entries["module/nvidia/version"] = text(bus.node.driver.version, 0o444)
        entries["module/nvidia_modeset"] = Directory()
        if bus.node.driver.uvm_loaded:
            entries["module/nvidia_uvm"] = Directory()
    return entries


def _numa_nodes(node: NodeDescription) -> dict[str, Entry]:
    numbers = sorted({0} | {gpu.numa_node for gpu in node.gpus if gpu.numa_node >= 0})
    entries: dict[str, Entry] = {
        f"devices/system/node/node{number}/cpulist": text(_cpus(number), 0o444)
        for number in numbers
    }
    memory = {gpu.memory_numa_node for gpu in node.gpus if gpu.memory_numa_node is not None}
    for number in sorted(memory - set(numbers)):
        entries[f"devices/system/node/node{number}/cpulist"] = text("", 0o444)
    online = ",".join(str(number) for number in sorted(memory | set(numbers)))
    entries["devices/system/node/online"] = text(online, 0o444)
    return entries


def _cpus(numa_node: int) -> str:
    if numa_node < 0:
        return f"0-{2 * CPUS_PER_NUMA_NODE - 1}"
    first = numa_node * CPUS_PER_NUMA_NODE
    return f"{first}-{first + CPUS_PER_NUMA_NODE - 1}"


# One function


def _facts(function: PciFunction) -> dict[str, str]:
    """The one-line files that never change."""
    facts = {
        "vendor": f"0x{function.vendor:04x}",
        "device": f"0x{function.device:04x}",
        "subsystem_vendor": f"0x{function.subsystem_vendor:04x}",
        "subsystem_device": f"0x{function.subsystem_device:04x}",
        "class": f"0x{function.class_code:06x}",
        "revision": f"0x{functions.REVISION:02x}",
        "numa_node": str(function.numa_node),
        "local_cpulist": _cpus(function.numa_node),
        "modalias": modalias(function),
    }
    if function.gpu is not None:
        facts["irq"] = str(interrupt_number(function.gpu))
    if function.class_code == functions.CLASS_VGA:
        facts["boot_vga"] = "0"
    if function.virtual_functions:
        facts["sriov_totalvfs"] = str(function.virtual_functions)
    return facts


def modalias(function: PciFunction) -> str:
    """The name by which modprobe finds the native driver; with `vfio_pci:`, that of vfio."""
    base, sub = function.class_code >> 16, function.class_code >> 8 & 0xFF
    return (
        f"pci:v{function.vendor:08X}d{function.device:08X}sv{function.subsystem_vendor:08X}"
        f"sd{function.subsystem_device:08X}bc{base:02x}sc{sub:02x}i{function.class_code & 0xFF:02x}"
    )


def _controls(function: PciFunction, state: FunctionState) -> dict[str, Entry]:
    """The files that can be written, and those that tell what was written."""
    directory = function.directory
    # As `dev_uevent`: the core forgets the driver only when its remove has returned.
    driver = [f"DRIVER={state.driver}"] if state.driver else []
    uevent = [
        *driver,
        f"PCI_CLASS={function.class_code:X}",
        f"PCI_ID={function.vendor:04X}:{function.device:04X}",
        f"PCI_SUBSYS_ID={function.subsystem_vendor:04X}:{function.subsystem_device:04X}",
        f"PCI_SLOT_NAME={function.address}",
        f"MODALIAS={modalias(function)}",
    ]
    entries: dict[str, Entry] = {
        f"{directory}/uevent": text("\n".join(uevent)),
        f"{directory}/driver_override": text(state.override or "(null)"),
        f"{directory}/enable": text("1" if state.driver else "0"),
        f"{directory}/remove": File(b"", 0o200),
        f"{directory}/rescan": File(b"", 0o200),
    }
    if not function.is_bridge:
        entries[f"{directory}/reset"] = File(b"", 0o200)
        entries[f"{directory}/reset_method"] = text("flr bus")
    if function.virtual_functions:
        entries[f"{directory}/sriov_numvfs"] = text("0")
    return entries


def _driver_links(function: PciFunction, state: FunctionState) -> dict[str, Entry]:
    directory, entries = function.directory, dict[str, Entry]()
    if (holder := state.holder) is not None:
        driver = f"bus/pci/drivers/{holder}"
        entries[f"{directory}/driver"] = Link(_from(directory, driver))
        entries[f"{driver}/{function.address}"] = Link(_from(driver, directory))
    if state.phase is not Phase.BOUND:
        return entries
    if function.gpu is not None and state.driver == pci_bus.NVIDIA_DRIVER:
        entries[f"{directory}/drm/card{drm_card(function.gpu)}"] = Directory()
        entries[f"{directory}/drm/renderD{drm_render(function.gpu)}"] = Directory()
    if state.driver in modules.VFIO_DRIVERS:
        device = f"{directory}/vfio-dev/vfio{state.vfio_number}"
        entries[device] = Directory()
        entries[f"class/vfio-dev/vfio{state.vfio_number}"] = Link(f"../../{device}")
    return entries


def _iommu_links(function: PciFunction) -> dict[str, Entry]:
    if function.group is None:
        return {}
    directory, group = function.directory, f"kernel/iommu_groups/{function.group}"
    return {
        f"{directory}/iommu_group": Link(_from(directory, group)),
        f"{group}/devices/{function.address}": Link(_from(f"{group}/devices", directory)),
        f"{group}/type": text(IOMMU_DOMAIN),
        f"{group}/reserved_regions": text("0x00000000fee00000 0x00000000feefffff msi", 0o444),
    }


def _companion_links(function: PciFunction, bus: Bus) -> dict[str, Entry]:
    """The device links that quirks of the kernel make from a GPU to the functions beside it."""
    if function.supplier is None or bus.state(function.supplier) is None:
        return {}
    supplier = bus.function(function.supplier)
    if supplier is None:
        return {}
    link = f"devices/virtual/devlink/pci:{supplier.address}--pci:{function.address}"
    above, beside = supplier.directory, function.directory
    return {
        f"{link}/consumer": Link(_from(link, beside)),
        f"{link}/supplier": Link(_from(link, above)),
        f"{above}/consumer:pci:{function.address}": Link(_from(above, link)),
        f"{beside}/supplier:pci:{supplier.address}": Link(_from(beside, link)),
    }


def _vfio_groups(bus: Bus) -> dict[str, Entry]:
    entries: dict[str, Entry] = {"class/vfio": Directory()} if "vfio" in bus.modules else {}
    for group in pci_bus.groups_of_vfio(bus):
        device = f"devices/virtual/vfio/{group}"
        entries[f"{device}/dev"] = text(f"{bus.node.majors.vfio}:{group}", 0o444)
        entries[f"class/vfio/{group}"] = Link(f"../../{device}")
    return entries


def _adapter(function: PciFunction) -> dict[str, Entry]:
    """The vital product data of an NVLink 5 switch carry the mark SW_MNG."""
    name = f"mlx5_{function.address.rpartition('.')[2]}"
    adapter = f"{function.directory}/infiniband/{name}"
    return {
        f"{function.directory}/vpd": File(b"\x82\x06\x00SW_MNG\x78", 0o600),
        f"{adapter}/device": Link(f"../../../{function.address}"),
        f"class/infiniband/{name}": Link(f"../../{adapter}"),
    }


def _resource(gpu: Gpu | None) -> File:
    """Start, end and flags of each region, each at a multiple of its size behind the one before."""
    bars = {} if gpu is None else {0: 16 * MIB, 2: gpu.bar1_mib * MIB, 4: 32 * MIB}
    lines, free = [], 0x2000_0000_0000
    for index in range(RESOURCES):
        size = bars.get(index, 0)
        if size == 0:
            lines.append("0x0000000000000000 0x0000000000000000 0x0000000000000000")
            continue
        start = -(-free // size) * size
        free = start + size
        lines.append(f"0x{start:016x} 0x{free - 1:016x} 0x{MEMORY_FLAGS:016x}")
    return text("\n".join(lines), 0o444)


@lru_cache(maxsize=4096)  # made anew at each change of the bus, and nearly all the same
def _from(directory: str, target: str) -> str:
    return os.path.relpath(target, directory)
