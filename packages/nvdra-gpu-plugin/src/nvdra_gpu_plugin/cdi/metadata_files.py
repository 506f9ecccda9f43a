# SPDX-License-Identifier: Apache-2.0
"""Writes the device metadata files of claims and the CDI specs that mount them, and removes them.

They are written before their claim is answered, and stay while it is prepared. The content of each
is remembered, so that a file that is removed or edited can be restored. A file is replaced by
another one, so that what a running container sees never changes under its reader.

Nothing is synced to the disk, which would make a prepare twice as long: all of it follows from the
claims' records, which are, and every start compares the files with them.

These calls block: they run on the thread for files.
"""

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from nvdra_api.ids import ClaimUID
from nvdra_runtime.node import files
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi import file_checks, metadata_content
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.driver.installation import FileID

LOG = logs.logger(__name__)

_DIRECTORY_MODE: Final = 0o755


class MetadataFiles:
    """The device metadata files of one node's claims.

    A claim may be prepared while an older one of the same name is still held, if a user has
    deleted that one by force. Both have their metadata at the same path: it is the newer one's.
    """

    def __init__(
        self, plugin_dir: Path, cdi_root: Path, prepared: Iterable[GpuClaimRecord] = ()
    ) -> None:
        """Create it without any call.

        Args:
            plugin_dir: The plugin's directory, which has the same path on the host.
            cdi_root: The directory that the container runtime reads.
            prepared: The claims that an earlier process has prepared, the oldest one first.
        """
        self._plugin_dir = plugin_dir
        self._cdi_root = cdi_root
        self._content: dict[ClaimUID, dict[Path, bytes]] = {}
        self._directories: dict[ClaimUID, Path] = {}
        self._owners: dict[Path, ClaimUID] = {}
        self._written: dict[Path, FileID | None] = {}
        for record in prepared:
            self._remember(record)

    def write(self, record: GpuClaimRecord) -> None:
        """Write the files of a claim, unless they are as they should be.

        Raises:
            CDIError: A name of the claim cannot be part of a CDI document.
            OSError: A file cannot be written. A claim that had none is not restored later either.
        """
        is_new = record.uid not in self._content
        self._remember(record)
        try:
            self._write_changed(record.uid)
        except OSError:
            if is_new:
                self._forget(record.uid)
            raise

    def restore(self) -> None:
        """Restore files that were removed or edited.

        Raises:
            OSError: Files of a claim cannot be written; those of all other claims are.
        """
        failure = None
        for uid in list(self._content):
            try:
                self._write_changed(uid)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def remove_mounts(self, record: GpuClaimRecord) -> None:
        """Remove the CDI specs of a claim, so that no container can get its files any more.

        Raises:
            OSError: A spec cannot be removed.
        """
        self._forget(record.uid)
        for path in metadata_content.spec_paths(record, self._cdi_root).values():
            path.unlink(missing_ok=True)

    def remove_documents(self, record: GpuClaimRecord) -> None:
        """Remove the metadata files of a claim whose specs were removed.

        If a claim of the same name is still held, they are that one's from now on.

        Raises:
            OSError: A file cannot be removed or written.
        """
        directory = metadata_content.claim_directory(self._plugin_dir, record)
        namesakes = [uid for uid, each in self._directories.items() if each == directory]
        if not namesakes:
            _remove_directory(directory)
        for uid in namesakes:
            self._write_changed(uid)

    def remove_others(self, kept: Collection[GpuClaimRecord]) -> None:
        """Remove the files of claims that are not known, and what killed writers have left.

        Args:
            kept: Claims with a record. What this process has written stays in any case: the record
                may be about to be committed.

        Raises:
            OSError: A file cannot be removed; the following ones stay, too.
        """
        uids = {*self._content, *(record.uid for record in kept)}
        directories = {metadata_content.claim_directory(self._plugin_dir, each) for each in kept}
        directories |= set(self._directories.values())
        prefix = metadata_content.SPEC_PREFIX
        for path in self._cdi_root.glob(f"{prefix}*.json"):
            uid, _, _ = path.name.removeprefix(prefix).partition("_")
            if uid not in uids:
                path.unlink(missing_ok=True)
                LOG.info("Removed a metadata spec of a claim that is not prepared", file=str(path))
        for path in self._cdi_root.glob(f".{prefix}*"):  # a writer that was killed has left it
            path.unlink(missing_ok=True)
        for directory in (self._plugin_dir / metadata_content.DIRECTORY).glob("*_*"):
            if directory.is_dir() and directory not in directories:
                _remove_directory(directory)
                LOG.info(
                    "Removed the metadata of a claim that is not prepared", file=str(directory)
                )

    def _remember(self, record: GpuClaimRecord) -> None:
        content = metadata_content.documents(record, self._plugin_dir)
        content |= metadata_content.specs(record, self._plugin_dir, self._cdi_root)
        former = self._content.get(record.uid, {})
        for path, data in content.items():
            if path not in former:
                self._owners[path] = record.uid
            if former.get(path) != data:
                self._written.pop(path, None)
        self._content[record.uid] = content
        directory = metadata_content.claim_directory(self._plugin_dir, record)
        self._directories[record.uid] = directory

    def _forget(self, uid: ClaimUID) -> None:
        """Forget a claim; where an older one has the same path, it is that one's again."""
        self._directories.pop(uid, None)
        for path in self._content.pop(uid, {}):
            if self._owners[path] == uid:
                others = (each for each in reversed(self._content) if path in self._content[each])
                self._written.pop(path, None)
                if (other := next(others, None)) is None:
                    del self._owners[path]
                else:
                    self._owners[path] = other

    def _write_changed(self, uid: ClaimUID) -> None:
        for path, data in self._content[uid].items():
            if self._owners[path] != uid:
                continue
            known = self._written.get(path)
            if known is None or file_checks.file_id(path) != known:
                if not _has_data(path, data):
                    _write(path, data)
                    LOG.v(2, "Device metadata of a claim written", file=str(path))
                self._written[path] = file_checks.file_id(path)


def _has_data(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _write(path: Path, data: bytes) -> None:
    try:
        files.write_atomic(path, data, is_synced=False)
    except FileNotFoundError:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        files.write_atomic(path, data, is_synced=False)


def _remove_directory(path: Path) -> None:
    """Remove a directory and its files, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
