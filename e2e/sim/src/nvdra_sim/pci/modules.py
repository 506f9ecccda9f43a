# SPDX-License-Identifier: Apache-2.0
"""The kernel modules for passthrough: what depends on what, and which drivers they have.

Sources: Linux 6.12, drivers/vfio: `MODULE_SOFTDEP` of vfio_main.c (vfio brings vfio_iommu_type1),
the `pci_driver` of vfio_pci.c ("vfio-pci") and of nvgrace-gpu/main.c, whose name is that of its
module, and its id table; docs/reference/nvml-simulator.md §14.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from nvdra_sim.description import NodeDescription

DRIVERS = {"vfio_pci": "vfio-pci", "nvgrace_gpu_vfio_pci": "nvgrace_gpu_vfio_pci"}
"""Module → the directory of its driver below `bus/pci/drivers`."""

MODULES = ("iommufd", "vfio", "vfio_iommu_type1", "vfio_pci_core", *DRIVERS)
"""All modules; the place of each is its bit in the state file."""

VFIO_DRIVERS = frozenset(DRIVERS.values())
NEEDS = {
    "iommufd": (),
    "vfio": ("iommufd",),
    "vfio_iommu_type1": ("vfio",),
    "vfio_pci_core": ("vfio",),
    "vfio_pci": ("vfio_pci_core",),
    "nvgrace_gpu_vfio_pci": ("vfio_pci_core",),
}
BRINGS = {"vfio": ("vfio_iommu_type1",)}
"""What modprobe loads after a module, as that module asks it to."""

GRACE_DEVICES = (0x2342, 0x2345, 0x2348, 0x2941, 0x31C2, 0x31C3)
ALIASES = (
    ("vfio_pci:v*d*sv*sd*bc*sc*i*", "vfio_pci"),
    *((f"vfio_pci:v000010DEd{device:08X}sv*sd*bc*sc*i*", "nvgrace_gpu_vfio_pci")
      for device in GRACE_DEVICES),
)  # fmt: skip


def available(node: NodeDescription) -> tuple[str, ...]:
    """The modules that this kernel has, whether loaded or not."""
    absent = {*node.vfio.missing, *(() if node.iommu.iommufd else ("iommufd",))}
    return tuple(
        module for module in MODULES if not absent.intersection({module, *_all_needs(module, node)})
    )


def aliases(node: NodeDescription) -> str:
    """The content of `modules.alias`, as depmod writes it."""
    known = available(node)
    lines = [f"alias {alias} {module}" for alias, module in ALIASES if module in known]
    return "\n".join(["# Aliases extracted from modules themselves.", *lines])


def dependencies(node: NodeDescription) -> str:
    """The content of `modules.dep`, as depmod writes it, without what a module needs."""
    files = (f"kernel/drivers/{name.replace('_', '-')}.ko:" for name in available(node))
    return "\n".join(files)


def resolve(name: str, node: NodeDescription) -> tuple[str, ...]:
    """The modules that modprobe means by a name, a module or an alias; none if there is none."""
    module = name.replace("-", "_")
    known = available(node)
    if module in known:
        return (module,)
    # Of several modules with a fitting alias, modprobe loads all.
    return tuple(found for alias, found in ALIASES if found in known and fnmatchcase(name, alias))


def with_needs(module: str, node: NodeDescription) -> frozenset[str]:
    """The module, what it needs, and what modprobe loads after those."""
    known = available(node)
    loaded = {module, *_all_needs(module, node)}
    loaded |= {brought for need in loaded for brought in BRINGS.get(need, ())}
    return frozenset(loaded & set(known))


def needs_in_order(module: str, node: NodeDescription) -> tuple[str, ...]:
    """What the module needs, the deepest first, as in `modules.dep` read from its end."""
    found: dict[str, None] = {}
    for need in _needs(module, node):
        found |= dict.fromkeys((*needs_in_order(need, node), need))
    return tuple(found)


def users(module: str, loaded: Iterable[str], node: NodeDescription) -> tuple[str, ...]:
    """The loaded modules that need this one directly, which keeps it from being unloaded."""
    return tuple(other for other in loaded if module in _needs(other, node))


def at_boot(node: NodeDescription) -> frozenset[str]:
    """The modules that are loaded at boot."""
    if not node.vfio.loaded:
        return frozenset()
    bound = {gpu.bound_driver for gpu in node.gpus}
    wanted = {"vfio_pci", *(module for module, driver in DRIVERS.items() if driver in bound)}
    return frozenset().union(*(with_needs(module, node) for module in wanted))


def _needs(module: str, node: NodeDescription) -> tuple[str, ...]:
    """Without iommufd in the kernel, vfio is built without it."""
    return tuple(need for need in NEEDS[module] if need != "iommufd" or node.iommu.iommufd)


def _all_needs(module: str, node: NodeDescription) -> frozenset[str]:
    direct = _needs(module, node)
    return frozenset(direct).union(*(_all_needs(need, node) for need in direct))
