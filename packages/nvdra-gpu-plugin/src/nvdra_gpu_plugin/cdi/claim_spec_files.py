# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of single claims: the devices that are made for them, and what clients of MPS get.

A spec is written before its claim is answered, and removed when the claim is unprepared. The
content of each is remembered, so that a file that is removed or edited can be restored. These calls
block: they run on the thread for files.
"""

from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Final

from nvdra_api import names
from nvdra_api.ids import ClaimUID, DeviceName
from nvdra_api.v1beta1 import VfioDeviceConfig
from nvdra_api.v1beta1.vfio_device_config import IommuConfig
from nvdra_cdi import files
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.rooted_files import RootedFiles
from nvdra_runtime.node.host import Host
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi import file_checks, mps_edits, node_spec, vfio_edits
from nvdra_gpu_plugin.cdi.node_spec import Instances, NodeSpec
from nvdra_gpu_plugin.cdi.vfio_edits import BoundGpu
from nvdra_gpu_plugin.devices import device_identity
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.installation import FileID
from nvdra_gpu_plugin.passthrough import pci_functions

LOG = logs.logger(__name__)

_CLASS: Final = "claim-device"

_THIS_HOST: Final = RootedFiles()


class ClaimSpecFiles:
    """The specs of this driver's claims."""

    def __init__(self, cdi_root: Path, host: Host, driver_files: RootedFiles = _THIS_HOST) -> None:
        """Create it without any call.

        Args:
            cdi_root: The directory that the container runtime reads.
            host: Where procfs is.
            driver_files: The files of the host.
        """
        self._root = cdi_root
        self._host = host
        self._driver_files = driver_files
        self._specs: dict[ClaimUID, Spec] = {}
        self._files: dict[ClaimUID, FileID | None] = {}

    def write(self, record: GpuClaimRecord, spec: NodeSpec, inventory: Inventory) -> None:
        """Write the spec of a claim whose devices were made, unless the file has this content.

        Args:
            record: The claim.
            spec: What all containers of the node get.
            inventory: The GPUs on which the devices were made.

        Raises:
            CDIError: The device node of a GPU is missing, or the file cannot be written.
        """
        self._specs[record.uid] = self._build(record, spec, inventory)
        self._files.pop(record.uid, None)
        self._write_if_changed(record.uid)

    def restore(self) -> None:
        """Restore specs that were removed or edited.

        Raises:
            CDIError: A file cannot be written.
        """
        for uid in list(self._specs):
            self._write_if_changed(uid)

    def remove(self, uid: ClaimUID) -> None:
        """Remove the spec of a claim, if it has one.

        Raises:
            CDIError: It cannot be removed.
        """
        self._specs.pop(uid, None)
        self._files.pop(uid, None)
        files.remove(self._path(uid))

    def remove_others(self, claims: Collection[ClaimUID]) -> None:
        """Remove all specs but those of these claims, and what killed writers have left.

        Raises:
            CDIError: A file cannot be removed; the following ones stay, too.
            OSError: The directory cannot be read.
        """
        kept = {self._path(uid) for uid in claims}
        for path in self._root.glob(files.transient_name(names.GPU_CDI_VENDOR, _CLASS, "*")):
            if path not in kept:
                files.remove(path)
                LOG.info("Removed the CDI spec of a claim that is not prepared", file=str(path))
        files.remove_temporary_files(
            self._root, before=inf, name_prefix=f"{names.GPU_CDI_VENDOR}-{_CLASS}_"
        )

    def _build(self, record: GpuClaimRecord, spec: NodeSpec, inventory: Inventory) -> Spec:
        majors = installation.drivers_by_major(self._host)
        steps = {step.device: step for step in record.made}
        devices: list[Device] = []
        for device in record.devices:
            step = steps.get(device.device)
            if device.mps_cdi_id:
                name = device.mps_cdi_id.partition("=")[2]
                devices.append(Device(name, mps_edits.for_client(record, device)))
            if not device.is_made or step is None or step.made is None:
                continue
            gpu = device_identity.find_gpu(device, inventory)
            if gpu is None:
                raise DiscoveryError(f"{device.parent_uuid} of {device.device} is not on the node")
            instances = Instances(
                step.made.uuid,
                step.made.gpu_instance,
                step.made.compute_instance,
                step.is_graphics,
            )
            edits = node_spec.mig_edits(gpu, instances, spec.options, majors, self._driver_files)
            devices.append(Device(device.cdi_id.partition("=")[2], edits))
        for name, edits in self._vfio_edits(record, spec.options.target_dev_root).items():
            devices.append(Device(f"{record.uid}-{name}", edits))
        # Clients of MPS get a device of the node's spec, too, which brings what all containers get.
        common = ContainerEdits()
        if steps:
            common = spec.common_edits + spec.with_present_sockets().sockets
        return assemble(names.GPU_CDI_CLAIM_DEVICE_KIND, common, devices)

    def _vfio_edits(
        self, record: GpuClaimRecord, dev_root: str
    ) -> Mapping[DeviceName, ContainerEdits]:
        """What containers get of GPUs on vfio, by the nodes that these have now.

        Raises:
            DiscoveryError: A GPU is not on vfio.
        """
        if not record.bound:
            return {}
        first = record.bound[0]
        iommu = IommuConfig(
            backend_policy=first.backend_policy, enable_api_device=first.enable_api_device
        )
        gpus = [self._bound_gpu(step) for step in record.bound]
        choice = vfio_edits.choose_backend(
            VfioDeviceConfig(iommu=iommu),
            gpus,
            has_iommufd=pci_functions.has_iommufd(self._host),
        )
        LOG.v(
            2,
            "The back end of a claim's vfio devices",
            claim=str(record.ref),
            backend=choice.backend.value,
            why=choice.reason,
        )
        root = "/dev" if dev_root == "/" else f"{dev_root}/dev"
        return vfio_edits.of_devices(
            gpus, choice.backend, enable_api_device=first.enable_api_device, dev_root=root
        )

    def _bound_gpu(self, step: BindVfio) -> BoundGpu:
        function = pci_functions.read_some(self._host, [step.pci]).functions.get(step.pci)
        if function is None or not function.is_on_vfio or function.group is None:
            raise DiscoveryError(f"{step.device} ({step.pci}) is not on vfio")
        node = pci_functions.cdev(self._host, function)
        return BoundGpu(step.device, step.pci, function.group, None if node is None else node.name)

    def _write_if_changed(self, uid: ClaimUID) -> None:
        path, spec = self._path(uid), self._specs[uid]
        found = file_checks.file_id(path)
        if found is None or found != self._files.get(uid):
            if not file_checks.has_content(path, spec):
                files.write(spec, path)
                LOG.v(2, "CDI spec of a claim written", file=str(path))
            self._files[uid] = file_checks.file_id(path)

    def _path(self, uid: ClaimUID) -> Path:
        return self._root / files.transient_name(names.GPU_CDI_VENDOR, _CLASS, uid)
