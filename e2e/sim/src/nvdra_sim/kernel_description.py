# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a simulated node has: numbers, an IOMMU, modules for passthrough."""

from __future__ import annotations

from nvdra_sim.frozen import Frozen


class Majors(Frozen):
    """The major numbers that the kernel assigns when modules are loaded.

    `nvidia` and `drm` are fixed on real machines. Nodes that share a PID namespace need numbers of
    their own, because who holds a device is told by its number.
    """

    nvidia: int
    drm: int
    vfio: int  # of /dev/vfio/<group>
    vfio_devices: int  # of /dev/vfio/devices/vfio<N>
    nvidia_uvm: int
    nvidia_caps: int
    nvidia_caps_imex_channels: int


class Iommu(Frozen):
    """The IOMMU of the node, and which interfaces of the kernel reach it.

    Attributes:
        enabled: Whether functions have groups.
        iommufd: Whether the kernel has `/dev/iommu`, once its module is loaded.
        cdev: Whether vfio devices have nodes of their own below `/dev/vfio/devices`.
        acs: Whether PCIe switches isolate their ports. Without it, all below one is one group.
    """

    enabled: bool
    iommufd: bool
    cdev: bool
    acs: bool


class VfioModules(Frozen):
    """The kernel modules for passthrough: loaded at boot, or what modprobe finds.

    Attributes:
        loaded: Whether vfio-pci is loaded at boot.
        missing: Names of modules that this kernel does not have, such as `vfio_pci`.
        d3cold: Whether the boards are cut off while they sleep on vfio, as firmware can offer it.
    """

    loaded: bool
    missing: tuple[str, ...]
    d3cold: bool
