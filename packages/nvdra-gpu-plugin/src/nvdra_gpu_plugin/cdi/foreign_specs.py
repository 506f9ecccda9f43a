# SPDX-License-Identifier: Apache-2.0
"""What the reference driver has left on the node: a CDI spec for each of its claims, a checkpoint.

A kubelet that has an answer of the reference driver keeps it, so the names in it must exist until
the claim is unprepared. These calls block: they run on the thread for files.
Source: docs/reference/gpu-prepare.md, "CDI specs".
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from nvdra_api import names
from nvdra_api.ids import ClaimUID
from nvdra_cdi import files
from nvdra_cdi.errors import CDIError
from nvdra_cdi.model import Device, Spec
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.installation import FileID

LOG = logs.logger(__name__)

_CLASS: Final = "claim"
_CHECKPOINT: Final = "checkpoint.json"


def build_spec(record: GpuClaimRecord, node_spec: NodeSpec, inventory: Inventory) -> Spec | None:
    """The spec of a claim, with the names that it was answered with and today's hardware.

    Returns:
        None if one of its devices is not on the node.
    """
    devices: list[Device] = []
    for device in record.devices:
        found = inventory.by_uuid.get(device.uuid)
        edits = None if found is None else node_spec.device_edits.get(found.name)
        if edits is None:
            return None
        devices.append(Device(device.cdi_id.partition("=")[2], edits))
    edits = node_spec.common_edits + node_spec.sockets
    return assemble(names.GPU_CDI_CLAIM_KIND, edits, devices)


class ForeignSpecs:
    """The files of the reference driver."""

    def __init__(self, cdi_root: Path, plugin_dir: Path) -> None:
        self._root = cdi_root
        self._checkpoint = plugin_dir / _CHECKPOINT
        self._checked: dict[ClaimUID, FileID] = {}

    def has(self, record: GpuClaimRecord) -> bool:
        """Whether the container runtime can resolve the claim's names.

        A file is read once until it changes.
        """
        path = self._path(record.uid)
        try:
            file = installation.file_id(path)
            if self._checked.get(record.uid) == file:
                return True
            found = files.read(path)
        except (CDIError, OSError):
            return False
        wanted = {device.cdi_id for device in record.devices}
        if not wanted <= {f"{found.kind}={device.name}" for device in found.devices}:
            return False
        self._checked[record.uid] = file
        return True

    def write(self, uid: ClaimUID, spec: Spec) -> None:
        """Write the spec of a claim.

        Raises:
            CDIError: It cannot be written.
        """
        files.write(spec, self._path(uid))
        LOG.info("Wrote the CDI spec of a claim of another driver again", uid=uid)

    def remove_others(self, prepared: Collection[ClaimUID]) -> None:
        """Remove the specs of claims that are not `prepared`; without any, the checkpoint, too.

        Raises:
            CDIError: A file cannot be removed; the following ones stay, too.
            OSError: The directory cannot be read.
        """
        kept = {self._path(uid) for uid in prepared}
        for path in self._root.glob(self._path(ClaimUID("*")).name):
            if path not in kept:
                files.remove(path)
                LOG.info("Removed a CDI spec of another driver", file=str(path))
        if not prepared and self._checkpoint.exists():
            self._checkpoint.unlink(missing_ok=True)
            LOG.info("Removed the checkpoint of another driver", file=str(self._checkpoint))

    def _path(self, uid: ClaimUID) -> Path:
        return self._root / files.transient_name(names.GPU_CDI_VENDOR, _CLASS, uid)
