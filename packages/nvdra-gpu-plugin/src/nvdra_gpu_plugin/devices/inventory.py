# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node and their devices, as immutable values; created in the room `hardware`.

A device is what exists and can be allocated: a whole GPU, or a MIG device of a GPU in MIG mode. A
partition can be allocated, too: it is a MIG device that is made when a claim with it is prepared.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName, DeviceUUID, GpuUUID, MigUUID, PciAddress

from nvdra_gpu_plugin.devices import device_names, mig_profiles
from nvdra_gpu_plugin.devices.mig_profiles import MigProfile, Placement
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance of a GPU in MIG mode, which an administrator has made.

    Attributes:
        parent_uuid: The GPU.
        parent_number: The number in its name.
        pci: Its PCI address.
        profile: What its GPU instance has.
        placement: Where its GPU instance is.
        gpu_instance: The id of the GPU instance.
        compute_instance: The id of the compute instance in it.
        compute_start: The first compute slice within the GPU instance.
        compute_slices: How many it has; fewer than `profile.slices` if other compute instances
            share the GPU instance.
        multiprocessors: Of the compute instance.

    Source: docs/reference/gpu-devices.md, "Existing MIG devices".
    """

    uuid: MigUUID
    parent_uuid: GpuUUID
    parent_number: int
    pci: PciAddress
    profile: MigProfile
    placement: Placement
    gpu_instance: int
    compute_instance: int
    compute_start: int
    compute_slices: int
    multiprocessors: int

    @property
    def kind(self) -> str:
        """The kind of device: `mig`."""
        return "mig"

    @property
    def memory_bytes(self) -> int:
        """Its memory, which it shares with other parts of its GPU instance."""
        return self.profile.memory_bytes

    @property
    def is_part(self) -> bool:
        """Whether it does not cover its GPU instance."""
        return self.compute_slices != self.profile.slices

    @property
    def has_graphics(self) -> bool:
        """Whether programs can use it for graphics."""
        return "+gfx" in self.profile.name

    @property
    def profile_name(self) -> str:
        """`3g.20gb`, or `1c.3g.20gb` for a part of such a GPU instance."""
        if not self.is_part:
            return self.profile.name
        return mig_profiles.part_name(self.profile.name, self.compute_slices)

    @property
    def name(self) -> DeviceName:
        """The device name: `gpu-<number>-mig-<profile>-<profile id>-<start>`."""
        return device_names.mig_name(
            self.parent_number,
            self.profile_name,
            self.profile.id,
            self.placement.start,
            self.compute_start if self.is_part else None,
        )


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance: a part of a GPU, whose compute instances are MIG devices.

    Attributes:
        id: Ids are used again for other instances.
        profile: What it has.
        placement: Where it is.
    """

    id: int
    profile: MigProfile
    placement: Placement


@dataclass(frozen=True, slots=True)
class MigPartition:
    """A MIG device that can be made for a claim: a profile at a placement of a GPU.

    Its name is the one that the MIG device has while it exists.

    Attributes:
        parent_uuid: The GPU.
        parent_number: The number in its name.
        pci: Its PCI address.
        profile: What its GPU instance will have.
        placement: Where its GPU instance will be.

    Source: docs/reference/gpu-devices.md, "Partitionable devices".
    """

    parent_uuid: GpuUUID
    parent_number: int
    pci: PciAddress
    profile: MigProfile
    placement: Placement

    @property
    def kind(self) -> str:
        """The kind of device: `mig`."""
        return "mig"

    @property
    def memory_bytes(self) -> int:
        """The memory of the MIG device."""
        return self.profile.memory_bytes

    @property
    def has_graphics(self) -> bool:
        """Whether programs can use the MIG device for graphics."""
        return "+gfx" in self.profile.name

    @property
    def name(self) -> DeviceName:
        """The device name: `gpu-<number>-mig-<profile>-<profile id>-<start>`."""
        return device_names.mig_name(
            self.parent_number, self.profile.name, self.profile.id, self.placement.start
        )


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU, as NVML and sysfs describe it.

    Attributes:
        minor: The N of `/dev/nvidiaN`. It is not the NVML index.
        memory_bytes: Total memory; None if the GPU reports none of its own.
        compute_capability: `major.minor`.
        cuda_driver_version: `major.minor`, the newest CUDA version that the driver supports.
        addressing_mode: `HMM`, `ATS` or `None` as text; None if NVML does not have this query.
        numa_node: None if the kernel knows none.
        pcie_root: `pci<domain>:<bus>`; None if the GPU is not below a PCI host bridge.
        is_mig_enabled: Whether the GPU is in MIG mode, so that it cannot be allocated as a whole.
        mig_devices: Its MIG devices in the order of their names; none unless it is in MIG mode.
            Those that were made for claims are not among them.
        partitions: What can be made on it, in the order of names; none without `DynamicMIG`.
        withheld: MIG devices that exist and are not offered. They take room from partitions.
        bare_instances: GPU instances without a compute instance, which are no MIG devices. They
            take room all the same, unless a claim has had them made. None without partitions.
        other_number: The number in its name, where that is not the minor number.
        kept_mode: Whether it is in MIG mode and cannot be switched now, so that it offers only what
            needs no other mode; None if it can be switched, as far as is known.
        left_places: Where MIG devices are or may be that were made for claims which have ended, as
            long as they cannot be destroyed. They take room from partitions.

    Source: docs/reference/gpu-devices.md, "NVML calls for each GPU".
    """

    uuid: GpuUUID
    minor: int
    pci: PciAddress
    product_name: str
    brand: str
    architecture: str
    compute_capability: str
    driver_version: str
    cuda_driver_version: str
    memory_bytes: int | None
    addressing_mode: str | None
    numa_node: int | None
    pcie_root: str | None
    is_mig_enabled: bool
    mig_devices: tuple[MigDevice, ...] = ()
    partitions: tuple[MigPartition, ...] = ()
    withheld: tuple[MigDevice, ...] = ()
    bare_instances: tuple[GpuInstance, ...] = ()
    other_number: int | None = None
    kept_mode: bool | None = None
    left_places: "MadePlaces" = frozenset()

    @property
    def kind(self) -> str:
        """The kind of device: `gpu`."""
        return "gpu"

    @property
    def offers_whole(self) -> bool:
        """Whether it can be allocated as a whole.

        It cannot in MIG mode, unless the mode follows from what is allocated. While an
        administrator's instances exist, or those of claims that have ended, it stays in MIG mode.
        """
        if self.kept_mode or self.left_places:
            return False
        if self.can_switch_mode:
            return not (self.mig_devices or self.withheld or self.bare_instances)
        return not self.is_mig_enabled

    @property
    def devices(self) -> "tuple[Device, ...]":
        """What it offers of what exists: itself, or its MIG devices."""
        return (self,) if self.offers_whole else self.mig_devices

    @property
    def offered_partitions(self) -> tuple[MigPartition, ...]:
        """What can be made on it now; none while it cannot enter MIG mode."""
        return () if self.kept_mode is False else self.partitions

    @property
    def can_switch_mode(self) -> bool:
        """Whether claims switch its MIG mode: it needs no reset for that since Hopper."""
        return bool(self.partitions) and self.architecture != "Ampere"

    @property
    def name(self) -> DeviceName:
        """The device name of the whole GPU: `gpu-<number>`."""
        return device_names.gpu_name(self.number)

    @property
    def number(self) -> int:
        """The number in its name and in those of its MIG devices, see `gpu_numbers`."""
        return self.minor if self.other_number is None else self.other_number


MadePlaces = frozenset[tuple[int, int]]
"""Where on a GPU MIG devices are made for claims: profile id and first memory slice of each."""

Device = Gpu | MigDevice
"""What exists on the node."""

Allocated = Device | MigPartition | VfioDevice
"""What a claim may have been allocated."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A GPU or a MIG device that cannot be used.

    Attributes:
        device: Its device name, or a text with its NVML index; empty for all GPUs of the node. With
            a GPU, its MIG devices cannot be used either.
        text: What is wrong and what to do.
        reason: The reason that is reported.
        is_lost: Whether the GPU has answered that it is lost. It stays published with a taint where
            taints are served.
    """

    device: str
    text: str
    reason: Reason = Reason.DEVICE_UNHEALTHY
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the node, in the order of their PCI addresses.

    Attributes:
        gpus: The GPUs, in MIG mode or not.
        vfio: GPUs that can be passed to virtual machines, or are. The same GPU may be among `gpus`.
        devices: What they offer, in the same order.
        by_name: Every GPU and every MIG device, also a GPU in MIG mode, which is not offered.
        by_uuid: The same by UUID.
        vfio_by_name: The vfio devices.
        partitions: What can be made on the GPUs, by name.
    """

    gpus: tuple[Gpu, ...] = ()
    vfio: tuple[VfioDevice, ...] = ()
    devices: tuple[Device, ...] = field(init=False)
    by_name: Mapping[DeviceName, Device] = field(init=False)
    by_uuid: Mapping[DeviceUUID, Device] = field(init=False)
    vfio_by_name: Mapping[DeviceName, VfioDevice] = field(init=False)
    partitions: Mapping[DeviceName, MigPartition] = field(init=False)

    def __post_init__(self) -> None:
        known: list[Device] = [*self.gpus, *(mig for gpu in self.gpus for mig in gpu.mig_devices)]
        offered = tuple(device for gpu in self.gpus for device in gpu.devices)
        object.__setattr__(self, "devices", offered)
        object.__setattr__(self, "by_name", {device.name: device for device in known})
        object.__setattr__(self, "by_uuid", {device.uuid: device for device in known})
        partitions = {
            partition.name: partition for gpu in self.gpus for partition in gpu.partitions
        }
        object.__setattr__(self, "partitions", partitions)
        object.__setattr__(self, "vfio_by_name", {device.name: device for device in self.vfio})

    def without(self, faults: Iterable[Fault]) -> "Inventory":
        """The inventory without GPUs and MIG devices that cannot be used."""
        return self.without_devices({fault.device for fault in faults})

    def without_devices(self, names: Container[str]) -> "Inventory":
        """The inventory without GPUs, MIG devices and vfio devices of these names.

        The vfio device of a GPU has a name of its own, and stays.
        """
        left = (gpu for gpu in self.gpus if gpu.name not in names)
        vfio = tuple(device for device in self.vfio if device.name not in names)
        return Inventory(tuple(_without(gpu, names) for gpu in left), vfio)

    def keeping_modes(self, modes: Mapping[GpuUUID, bool]) -> "Inventory":
        """The inventory in which these GPUs cannot leave MIG mode (True) or enter it (False)."""
        if not modes:
            return self
        kept = (replace(gpu, kept_mode=modes.get(gpu.uuid)) for gpu in self.gpus)
        return Inventory(tuple(kept), self.vfio)

    def without_partitions(self) -> "Inventory":
        """The inventory in which nothing can be made on the GPUs."""
        return Inventory(tuple(replace(gpu, partitions=()) for gpu in self.gpus), self.vfio)

    def gpu_of(self, device: Device) -> Gpu:
        """The GPU that a device of this inventory is, or is a part of."""
        if isinstance(device, Gpu):
            return device
        parent = self.by_uuid[device.parent_uuid]
        assert isinstance(parent, Gpu)
        return parent


def _without(gpu: Gpu, names: Container[str]) -> Gpu:
    left = tuple(mig for mig in gpu.mig_devices if mig.name not in names)
    if left == gpu.mig_devices:
        return gpu
    withheld = (mig for mig in gpu.mig_devices if mig.name in names)
    return replace(gpu, mig_devices=left, withheld=(*gpu.withheld, *withheld))
