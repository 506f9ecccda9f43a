"""What is on this node: GPUs as they were found, frozen. `hardware` builds it, all read it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import DeviceName, GpuUUID, PciAddress

from nvdra_gpu_plugin import naming


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical board, with what NVML and sysfs say of it (spec/gpu-devices.md §6.2).

    Attributes:
        minor: The N of `/dev/nvidiaN`; it names the device. Not the NVML index.
        memory_bytes: Total memory; None where the board has none of its own to tell.
        compute_capability: `major.minor`.
        cuda_driver_version: `major.minor`, the newest CUDA this driver serves.
        addressing_mode: `HMM`, `ATS` or `None` as text; None where NVML has no such query.
        numa_node: None where the kernel knows none.
        pcie_root: `pci<domain>:<bus>`; None where the path does not start at a PCI host bridge.
        is_mig_enabled: The board is in MIG mode now, so it cannot be handed out whole.
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
        """The device name of the whole board: `gpu-<minor>`."""
        return naming.gpu(self.minor)


@dataclass(frozen=True, slots=True)
class Fault:
    """A board that is there and cannot be used: it is not offered, the others are.

    Attributes:
        board: What we can call it: its device name, or its NVML index.
        text: What is wrong, and what to do.
        reason: Under which users find it.
    """

    board: str
    text: str
    reason: Reason = Reason.DEVICE_UNHEALTHY


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every GPU of the node in order of its PCI address."""

    gpus: tuple[Gpu, ...] = ()
    by_name: Mapping[DeviceName, Gpu] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {gpu.name: gpu for gpu in self.gpus})

    def without(self, faults: Iterable[Fault]) -> "Inventory":
        """The same, less the boards that are faulty."""
        faulty = {fault.board for fault in faults}
        return Inventory(tuple(gpu for gpu in self.gpus if gpu.name not in faulty))
