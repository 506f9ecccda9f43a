"""The GPUs of a node, as immutable values. They are created in the room `hardware`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName, GpuUUID, PciAddress

from nvdra_gpu_plugin.devices import device_names


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU, as NVML and sysfs describe it.

    Attributes:
        minor: The N of `/dev/nvidiaN` and of the device name. It is not the NVML index.
        memory_bytes: Total memory; None if the GPU reports none of its own.
        compute_capability: `major.minor`.
        cuda_driver_version: `major.minor`, the newest CUDA version that the driver supports.
        addressing_mode: `HMM`, `ATS` or `None` as text; None if NVML does not have this query.
        numa_node: None if the kernel knows none.
        pcie_root: `pci<domain>:<bus>`; None if the GPU is not below a PCI host bridge.
        is_mig_enabled: Whether the GPU is in MIG mode, so that it cannot be allocated as a whole.

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

    @property
    def name(self) -> DeviceName:
        """The device name of the whole GPU: `gpu-<minor>`."""
        return device_names.gpu_name(self.minor)


@dataclass(frozen=True, slots=True)
class Fault:
    """A GPU that cannot be used.

    Attributes:
        device: Its device name, or a text with its NVML index; empty for all GPUs of the node.
        text: What is wrong and what to do.
        reason: The reason that is reported.
        is_lost: Whether the GPU has fallen off the bus. It stays published with a taint where
            taints are served.
    """

    device: str
    text: str
    reason: Reason = Reason.DEVICE_UNHEALTHY
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the node, in the order of their PCI addresses."""

    gpus: tuple[Gpu, ...] = ()
    by_name: Mapping[DeviceName, Gpu] = field(init=False)
    by_uuid: Mapping[GpuUUID, Gpu] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {gpu.name: gpu for gpu in self.gpus})
        object.__setattr__(self, "by_uuid", {gpu.uuid: gpu for gpu in self.gpus})

    def without(self, faults: Iterable[Fault]) -> "Inventory":
        """The inventory without GPUs that cannot be used."""
        faulty = {fault.device for fault in faults}
        return Inventory(tuple(gpu for gpu in self.gpus if gpu.name not in faulty))
