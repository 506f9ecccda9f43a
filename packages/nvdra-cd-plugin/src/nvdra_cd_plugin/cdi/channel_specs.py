# SPDX-License-Identifier: Apache-2.0
"""CDI specs of channel claims: the device nodes that workloads get."""

from collections.abc import Callable

from nvdra_api.ids import CliqueID

from nvdra_cd_plugin.cdi import edits
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cd_plugin.node.imex_devices import ImexDevices


class ChannelSpecs:
    """Writes one spec per channel claim."""

    def __init__(
        self,
        devices: ImexDevices,
        specs: SpecFiles,
        dev_root: Callable[[], DevRoot],
        files: FileWorker,
    ) -> None:
        self._devices = devices
        self._specs = specs
        self._dev_root = dev_root
        self._files = files

    async def write(
        self, record: DomainClaimRecord, clique: CliqueID, domain: Domain, deadline: float
    ) -> DomainClaimRecord:
        """Write the spec of the claim's channels; return the completed record.

        A claim on a node without a fabric gets no channels.

        Raises:
            DriverError: `DeviceNodeMissing`, `StateUnavailable`, `DeadlineExceeded`.
        """
        if not clique:
            return record.completed(clique, 0, ())
        available = await self._files.run(deadline, self._devices.channel_count)
        count = admission.channel_count(domain, record.mode, available)
        return await self.restore(record.completed(clique, count, ()), deadline)

    async def restore(self, record: DomainClaimRecord, deadline: float) -> DomainClaimRecord:
        """Write the spec of a completed record again, with the device numbers of this moment.

        Raises:
            DriverError: As `write`.
        """
        if not record.channels:
            return record
        name = await self._files.run(deadline, self._write_spec, record)
        return record.completed(record.clique, record.channels, (name,))

    def _write_spec(self, record: DomainClaimRecord) -> str:
        devices = self._devices.channels(record.first_channel, record.channels)
        container_edits = edits.channels(self._dev_root(), devices)
        return self._specs.write(record.uid, record.device.device, container_edits)
