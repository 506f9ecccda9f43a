# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs of the node that can be vfio devices, from sysfs and what NVML has said of them.

The modules of vfio are loaded when they are first needed, so that nothing that is published changes
with the first claim. What NVML says of a GPU is remembered for the boot, because it says nothing
while the GPU is on vfio; so are the numbers in the names of vfio devices, so that a GPU that is
unplugged renames none.
These calls block: they run on the thread for files, one at a time.
Source: docs/reference/gpu-devices.md, "VFIO devices".
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_runtime.node import files
from nvdra_runtime.node.host import Host
from nvdra_runtime.telemetry import logs
from pydantic import TypeAdapter

from nvdra_gpu_plugin.devices import gpu_forms, vfio_devices
from nvdra_gpu_plugin.devices.gpu_forms import Candidate, Prebound
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_gpu_plugin.passthrough import boards, pci_functions, pci_ids, vfio_modules
from nvdra_gpu_plugin.passthrough.boards import Board
from nvdra_gpu_plugin.passthrough.pci_functions import PciBus
from nvdra_gpu_plugin.passthrough.vfio_modules import ModuleError, ModuleFiles, VfioModules

LOG = logs.logger(__name__)

FILE_NAME: Final = "passthrough.json"


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """What is kept of the node's GPUs for the boot.

    Attributes:
        boot_id: The boot.
        indexes: The numbers in the names of vfio devices, by PCI address.
        gpus: What NVML has said, with the present driver.
    """

    boot_id: str
    indexes: Mapping[PciAddress, int]
    gpus: Mapping[PciAddress, Gpu]


_KNOWN_GPUS: Final = TypeAdapter(KnownGpus)


@dataclass(frozen=True, slots=True)
class Passthrough:
    """The GPUs of the node with regard to virtual machines.

    Attributes:
        boards: All whole GPUs in sysfs, with the reason why one cannot be passed.
        candidates: The same as they would be offered.
        devices: The vfio devices that a claim can have been allocated: without those that another
            program has bound, if the setting says so.
        remembered: What NVML has said of GPUs in this boot, with the present driver.
    """

    boards: tuple[Board, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    devices: tuple[VfioDevice, ...] = ()
    remembered: tuple[Gpu, ...] = ()

    @property
    def lent(self) -> tuple[Gpu, ...]:
        """The GPUs that claims have on vfio, as NVML has described them before."""
        away = {each.device.pci for each in self.candidates if each.is_on_vfio and each.is_claimed}
        return tuple(gpu for gpu in self.remembered if gpu.pci in away)


NOTHING: Final = Passthrough()


class VfioDiscovery:
    """Looks at the PCI bus of one node."""

    def __init__(
        self,
        host: Host,
        modules_root: Path,
        modprobe: Sequence[str],
        plugin_dir: Path,
        boot_id: str,
        claimed: Callable[[], Collection[PciAddress]],
        prebound: Prebound,
    ) -> None:
        """Create it without reading.

        Args:
            host: The node's files.
            modules_root: The node's `/lib/modules`.
            modprobe: The command that loads a module.
            plugin_dir: Where facts are kept for the next process of this boot.
            boot_id: `Host.boot_id()`.
            claimed: The GPUs that claims have bound to vfio, or are about to. Called on any thread.
            prebound: What becomes of GPUs that were bound to vfio by others.
        """
        self._host = host
        self._modules = ModuleFiles(host, modules_root)
        self._modprobe = modprobe
        self._refused: dict[str, VfioModules] = {}
        self._path = plugin_dir / FILE_NAME
        self._claimed = claimed
        self._prebound = prebound
        self._known = self._kept = KnownGpus(boot_id, {}, {})
        self._names: Mapping[int, str] | None = None

    def read_kept(self) -> None:
        """Read what the former process of this boot has kept."""
        try:
            found = _KNOWN_GPUS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            text = "Cannot read what is known of GPUs that are on vfio"
            LOG.warning(text, file=str(self._path), error=str(error))
            return
        if found.boot_id == self._known.boot_id:
            self._known = self._kept = found

    def numbers(self) -> Mapping[GpuUUID, int]:
        """The numbers in the names of the GPUs that are known. May be called on any thread."""
        return {gpu.uuid: gpu.number for gpu in self._known.gpus.values()}

    def look(self, described: Sequence[Gpu]) -> Passthrough:
        """The GPUs as they are now.

        Args:
            described: Those that NVML describes, in MIG mode or not.

        Raises:
            OSError: The PCI bus cannot be read.
        """
        before = self._claimed()
        bus, modules = self._with_modules()
        claimed = frozenset((*before, *self._claimed()))
        remembered = _remembered(self._known.gpus, described)
        found = boards.find(
            bus,
            modules,
            claimed=claimed,
            in_mig_mode={gpu.pci for gpu in remembered.values() if not gpu.offers_whole},
        )
        addresses = [board.gpu.pci for board in found]
        indexes = vfio_devices.indexes(addresses, self._known.indexes)
        self._known = KnownGpus(self._known.boot_id, indexes, remembered)
        self._keep()
        candidates = tuple(self._candidate(board, board.gpu.pci in claimed) for board in found)
        return Passthrough(
            found,
            candidates,
            tuple(each.device for each in candidates if not self._is_ignored(each)),
            tuple(gpu for _, gpu in sorted(remembered.items())),
        )

    def _with_modules(self) -> tuple[PciBus, Mapping[PciAddress, str | None]]:
        """The bus when the modules of its GPUs are loaded, and each GPU's module, if it is there.

        A module that cannot be loaded is tried again when the kernel has other modules.
        """
        bus, modules = pci_functions.read(self._host), self._modules.read()
        found = {
            pci: modules.module_for(function.modalias)
            for pci, function in bus.functions.items()
            if function.is_gpu
        }
        missing = {
            module
            for module in found.values()
            if module and vfio_modules.driver_of(module, bus.drivers) is None
        }
        if not (missing and bus.has_iommu):
            return bus, found
        for module in missing:
            if self._refused.get(module) == modules:
                continue
            try:
                vfio_modules.load(module, self._modprobe)
                LOG.info("A module of vfio is loaded", module=module)
            except ModuleError as error:
                self._refused[module] = modules
                text = "A module of vfio cannot be loaded, and GPUs that need it are not passed"
                LOG.warning(text, module=module, error=str(error))
        bus = pci_functions.read(self._host)
        loaded = {
            pci: module if module and vfio_modules.driver_of(module, bus.drivers) else None
            for pci, module in found.items()
        }
        return bus, loaded

    def _is_ignored(self, candidate: Candidate) -> bool:
        return candidate.is_prebound and self._prebound is Prebound.IGNORE

    def _candidate(self, board: Board, is_claimed: bool) -> Candidate:
        gpu = board.gpu
        if self._names is None:
            self._names = pci_ids.read()
        device = VfioDevice(
            index=self._known.indexes[gpu.pci],
            pci=gpu.pci,
            vendor_id=gpu.vendor,
            device_id=gpu.device,
            product_name=self._names.get(gpu.device, pci_ids.UNKNOWN),
            memory_bytes=gpu.memory_bytes,
            iommu_group=gpu.group,
            is_isolated=board.is_isolated,
            has_iommufd=pci_functions.has_iommufd(self._host),
            module=board.module or "",
            numa_node=gpu.numa_node,
            pcie_root=gpu.pcie_root,
        )
        return Candidate(
            gpu_forms.with_parent(device, self._known.gpus.get(gpu.pci)),
            is_on_vfio=gpu.is_on_vfio,
            can_be_passed=board.refusal is None,
            is_claimed=is_claimed,
        )

    def _keep(self) -> None:
        """Write what is known if it has changed.

        Without the file a restart may not offer a GPU that is on vfio, so it may fail.
        """
        if self._known == self._kept:
            return
        try:
            files.write_atomic(self._path, _KNOWN_GPUS.dump_json(self._known))
        except OSError as error:
            text = "Cannot write what is known of GPUs that are on vfio"
            LOG.warning(text, file=str(self._path), error=str(error))
            return
        self._kept = self._known


def _remembered(
    known: Mapping[PciAddress, Gpu], described: Sequence[Gpu]
) -> Mapping[PciAddress, Gpu]:
    """What was known, with what is described now. Another driver may say other things."""
    now = {gpu.pci: gpu for gpu in described}
    versions = {gpu.driver_version for gpu in described}
    uuids = {gpu.uuid for gpu in described}
    kept = {
        pci: gpu
        for pci, gpu in known.items()
        if (not versions or gpu.driver_version in versions) and gpu.uuid not in uuids
    }
    return {**kept, **now}
