# SPDX-License-Identifier: Apache-2.0
"""CDI specs of daemons: the domain's directory, the driver's files, the right to manage IMEX."""

from collections.abc import Callable

from nvdra_api.ids import CliqueID

from nvdra_cd_plugin.cdi import edits, spec_files
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cd_plugin.node.imex_devices import ImexDevices


class DaemonSpecs:
    """Writes what the daemon of a domain gets on this node."""

    def __init__(
        self,
        devices: ImexDevices,
        directories: DomainDirectories,
        specs: SpecFiles,
        dev_root: Callable[[], DevRoot],
        files: FileWorker,
    ) -> None:
        self._devices = devices
        self._directories = directories
        self._specs = specs
        self._dev_root = dev_root
        self._files = files

    async def write(
        self, record: DomainClaimRecord, clique: CliqueID, deadline: float
    ) -> DomainClaimRecord:
        """Write what the daemon gets; return the completed record.

        Raises:
            DriverError: `DriverMismatch`, `DeviceNodeMissing`, `StateUnavailable`,
                `DeadlineExceeded`.
        """
        return await self.restore(record.completed(clique, 0, ()), deadline)

    async def restore(self, record: DomainClaimRecord, deadline: float) -> DomainClaimRecord:
        """Write what the daemon of a completed record has, where it is missing or different.

        Raises:
            DriverError: As `write`.
        """
        names = await self._files.run(deadline, self._write_files, record)
        return record.completed(record.clique, 0, names)

    def _write_files(self, record: DomainClaimRecord) -> tuple[str, ...]:
        self._directories.create(record.domain)
        self._specs.write_base()
        container_edits = edits.daemon(
            self._dev_root(),
            record.to_domain(),
            record.clique,
            self._directories.path(record.domain),
            self._devices.management_capability() if record.clique else None,
        )
        own = self._specs.write(record.uid, record.device.device, container_edits)
        return (spec_files.BASE_CDI_NAME, own)
