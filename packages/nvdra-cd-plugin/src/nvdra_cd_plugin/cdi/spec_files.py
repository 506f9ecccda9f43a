# SPDX-License-Identifier: Apache-2.0
"""The CDI spec files of this driver: one with the driver's files for daemons, one for each claim.

The spec of a claim has the claim's UID in its name and is removed with the claim. The names in it
never change; its content is written again when the node has changed. The functions block: call
them on the thread for files.

Source: docs/reference/compute-domain.md, "CDI specs", "Races and correctness" (KW-37).
"""

from collections.abc import Callable, Collection
from math import inf
from pathlib import Path
from typing import Final

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DeviceName
from nvdra_cdi import codec, files, version
from nvdra_cdi.errors import CDIError, DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.nvidia.options import Options
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.cdi import edits

LOG = logs.logger(__name__)

_CLASS: Final = "claim"
_BASE: Final = "base"
BASE_CDI_NAME: Final = f"{names.DOMAIN_CDI_DEVICE_KIND}=all"
"""The CDI name of the driver's files, which a daemon's claim has in addition to its own."""

_FileID = tuple[int, int, int, int]


def claim_cdi_name(uid: ClaimUID, device: DeviceName) -> str:
    """The CDI name of a claim's device."""
    return f"{names.DOMAIN_CDI_CLAIM_KIND}={uid}-{device}"


class SpecFiles:
    """The spec files of this driver in the directory that the container runtime reads."""

    def __init__(self, cdi_root: Path, options: Callable[[], Options]) -> None:
        """Create it without reading or writing a file.

        Args:
            cdi_root: The directory that the container runtime reads.
            options: Where to look for the driver's files; called for each spec.
        """
        self._root = cdi_root
        self._options = options
        self._written: dict[Path, tuple[Spec, _FileID | None]] = {}

    def write_base(self) -> None:
        """Write the spec for daemons with the driver's files as they are now.

        Raises:
            PermanentError: `DriverMismatch`: there is no driver. `DeviceNodeMissing`: the spec
                cannot be written.
        """
        try:
            found = generator.management_spec(self._options(), names.DOMAIN_CDI_DEVICE_KIND)
        except DiscoveryError as error:
            raise PermanentError(
                Reason.DRIVER_MISMATCH,
                f"daemons need the NVIDIA driver's files: {error}",
                "install or repair the NVIDIA driver",
            ) from error
        spec = version.with_minimum(edits.for_daemon_containers(found))
        self._put(self._path("device", _BASE), spec)

    def write(self, uid: ClaimUID, device: DeviceName, container_edits: ContainerEdits) -> None:
        """Write the spec of a claim's device; `claim_cdi_name` names the device.

        Raises:
            PermanentError: `DeviceNodeMissing`: the spec cannot be written.
        """
        kind, _, name = claim_cdi_name(uid, device).partition("=")
        spec = assemble(kind, ContainerEdits(), [Device(name, container_edits)])
        self._put(self._path(_CLASS, uid), spec)

    def remove(self, uid: ClaimUID) -> None:
        """Remove a claim's spec if there is one.

        Raises:
            FileError: The file system refused.
        """
        path = self._path(_CLASS, uid)
        self._written.pop(path, None)
        files.remove(path)

    def restore(self) -> None:
        """Write specs again that were removed or changed; a `stat` for each that is unchanged.

        Raises:
            CDIError: The file system refused.
        """
        for path, (spec, written) in list(self._written.items()):
            if written is None or _file_id(path) != written:
                self._write(path, spec)

    def remove_stale(self, prepared: Collection[ClaimUID]) -> None:
        """Remove the specs of claims that are not `prepared`, and abandoned temporary files.

        Raises:
            FileError: The file system refused; the remaining files stay, too.
        """
        kept = {self._path(_CLASS, uid) for uid in prepared}
        for path in self._root.glob(self._path(_CLASS, "*").name):
            if path in kept:
                self._load(path)
            else:
                files.remove(path)
                LOG.info("Removed the CDI spec of a claim that is not prepared", file=str(path))
        files.remove_temporary_files(
            self._root, before=inf, name_prefix=f"{names.DOMAIN_CDI_VENDOR}-"
        )

    def _put(self, path: Path, spec: Spec) -> None:
        try:
            self._write(path, spec)
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"a CDI spec cannot be written: {error}",
                "check that --cdi-root is a writable directory with free space",
            ) from error

    def _write(self, path: Path, spec: Spec) -> None:
        if not _has_content(path, spec):
            files.write(spec, path)
            LOG.v(4, "CDI spec written", file=str(path))
        self._written[path] = (spec, _file_id(path))

    def _load(self, path: Path) -> None:
        """Include a spec that an earlier process wrote in what `restore` checks."""
        if path in self._written:
            return
        try:
            self._written[path] = (files.read(path), _file_id(path))
        except CDIError as error:
            LOG.warning("Failed to read the CDI spec of a prepared claim", error=str(error))

    def _path(self, class_: str, id_: str) -> Path:
        return self._root / files.transient_name(names.DOMAIN_CDI_VENDOR, class_, id_)


def _file_id(path: Path) -> _FileID | None:
    """The identity of the file and the time of its last change; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _has_content(path: Path, spec: Spec) -> bool:
    try:
        return path.read_bytes() == codec.dumps(spec, "yaml")
    except OSError:
        return False
