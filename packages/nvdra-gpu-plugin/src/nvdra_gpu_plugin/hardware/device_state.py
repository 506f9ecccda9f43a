# SPDX-License-Identifier: Apache-2.0
"""What is known of the node's GPUs, as a value that follows from probes and the CDI spec."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName, PciAddress
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin.cdi import node_spec
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.cdi.spec_updater import SpecState
from nvdra_gpu_plugin.devices.inventory import Device, Fault, Gpu, Inventory
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import Status
from nvdra_gpu_plugin.passthrough import vfio_discovery
from nvdra_gpu_plugin.passthrough.vfio_discovery import Passthrough


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The usable GPUs of the node, and their CDI spec."""

    inventory: Inventory
    spec: NodeSpec

    @property
    def has_driver(self) -> bool:
        """Whether there is a driver of NVIDIA, so that it has GPUs and not only vfio devices."""
        return bool(self.spec.generation.name)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What is known of the node's GPUs.

    Attributes:
        snapshot: The GPUs; None while none can be used.
        node_fault: Why none can be used, or what failed although the snapshot can be used.
        faults: GPUs that cannot be used, and are not published.
        awaited: GPUs that NVML reports and that have not described themselves yet, or only after
            the spec was made, by device name; None for one whose name is not known either. They are
            not in the snapshot.
        passthrough: The GPUs with regard to virtual machines; nothing without the gate.
        is_released: Whether NVML is released. All else is as it was before, and is not looked at.
    """

    snapshot: Snapshot | None = None
    node_fault: Fault | None = None
    faults: tuple[Fault, ...] = ()
    awaited: tuple[DeviceName | None, ...] = ()
    passthrough: Passthrough = vfio_discovery.NOTHING
    is_released: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the driver works and there is no GPU."""
        if self.snapshot is None or self.faults or self.awaited:
            return False
        return not (self.snapshot.inventory.gpus or self.snapshot.inventory.vfio)

    @property
    def is_for_machines_only(self) -> bool:
        """Whether no driver of NVIDIA works and none is needed: all GPUs are on vfio."""
        if self.node_fault is None or self.snapshot is None or self.snapshot.has_driver:
            return False
        candidates = self.passthrough.candidates
        return bool(candidates) and all(candidate.is_on_vfio for candidate in candidates)

    def with_passthrough(self, found: Passthrough, options: Options) -> "DeviceState":
        """The state with vfio devices, which need no driver of NVIDIA.

        Args:
            found: What the PCI bus says.
            options: Where CDI specs find device nodes.
        """
        snapshot = self.snapshot
        if snapshot is not None:
            snapshot = replace(
                snapshot, inventory=Inventory(snapshot.inventory.gpus, found.devices)
            )
        elif found.devices:
            snapshot = Snapshot(Inventory(vfio=found.devices), node_spec.without_driver(options))
        return replace(self, snapshot=snapshot, passthrough=found)


def derive(probes: Sequence[GpuProbe], spec_state: SpecState) -> DeviceState:
    """The state that follows from the probes and the CDI spec.

    GPUs and MIG devices without a device in the spec are left out.
    """
    spec = spec_state.spec
    known = Inventory(spec_state.gpus)
    inventory = known.without_devices(known.by_name.keys() - spec.device_edits.keys())
    faults = [fault for probe in probes if (fault := probe.fault) is not None]
    faults += spec_state.faults
    for gpu in inventory.gpus:
        faults += _missing_path_faults(gpu, spec_state.missing_paths)
    in_spec = {gpu.pci for gpu in spec_state.gpus}
    awaited = [probe.state.name for probe in probes if _is_awaited(probe, in_spec)]
    return DeviceState(
        Snapshot(inventory, spec), spec_state.write_fault, tuple(faults), tuple(awaited)
    )


def _is_awaited(probe: GpuProbe, in_spec: Collection[PciAddress]) -> bool:
    """Whether the GPU will be in the snapshot: it may be starting, or is newer than the spec."""
    if probe.gpu is None:
        return probe.status is Status.AWAITED
    return probe.fault is None and probe.gpu.pci not in in_spec


def _missing_path_faults(gpu: Gpu, missing: Mapping[DeviceName, Sequence[str]]) -> Iterator[Fault]:
    """One for the GPU, or for each of its MIG devices that needs something else."""
    devices: Sequence[Device] = (gpu,) if gpu.name in missing else gpu.mig_devices
    for device in devices:
        if device.name in missing:
            yield _missing_paths_fault(device, missing[device.name])


def _missing_paths_fault(device: Device, missing: Sequence[str]) -> Fault:
    return Fault(
        device.name,
        f"{device.name} ({device.uuid}) needs {', '.join(missing)}, which is not on the node, or "
        "is another device now; reload the driver (nvidia-modprobe -c0 -u makes device nodes); it "
        "is offered again once it is there",
        Reason.DEVICE_NODE_MISSING,
    )
