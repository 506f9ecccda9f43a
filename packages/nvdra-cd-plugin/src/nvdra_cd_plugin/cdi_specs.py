"""Our CDI specs on the disk: one of the driver's files for daemons, one for each claim.

A claim's spec has the claim's UID in its name and goes with the claim. The names in it never
change, and what they stand for is written anew where the node has changed. Files block: called on
the thread for files. Source: spec/compute-domain.md §7.9, §14.2 (KW-37).
"""

from collections.abc import Callable, Collection
from math import inf
from pathlib import Path
from typing import Final

from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.errors import PermanentError, Reason
from nvdra_api.types.ids import ClaimUID, DeviceName
from nvdra_cdi import codec, files, version
from nvdra_cdi.errors import CDIError, DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assemble import assemble
from nvdra_cdi.nvidia.options import Options

from nvdra_cd_plugin import edits

LOG = logs.logger(__name__)

_CLASS: Final = "claim"
_BASE: Final = "base"
BASE_NAME: Final = f"{names.DOMAIN_CDI_DEVICE_KIND}=all"
"""What a daemon's claim names beside its own device."""


_FileID = tuple[int, int, int, int]


class SpecFiles:
    """The specs of this driver in the directory that the container runtime reads."""

    def __init__(self, cdi_root: Path, options: Callable[[], Options]) -> None:
        """Nothing is read or written yet.

        Args:
            cdi_root: Where the runtime reads them.
            options: Where to look for the driver's files; asked each time.
        """
        self._root = cdi_root
        self._options = options
        self._written: dict[Path, tuple[Spec, _FileID | None]] = {}

    def write_base(self) -> None:
        """Describe the driver as it is now, for daemons.

        Raises:
            PermanentError: `DriverMismatch`: it is not there. `DeviceNodeMissing`: the spec cannot
                be written.
        """
        try:
            found = generator.management(self._options(), names.DOMAIN_CDI_DEVICE_KIND)
        except DiscoveryError as error:
            raise PermanentError(
                Reason.DRIVER_MISMATCH,
                f"daemons need the NVIDIA driver's files: {error}",
                "install or repair the NVIDIA driver",
            ) from error
        spec = version.with_minimum(edits.for_daemons(found))
        self._put(self._path("device", _BASE), spec)

    def write(self, uid: ClaimUID, device: DeviceName, made: ContainerEdits) -> str:
        """Have what a claim's device stands for; its CDI name.

        Raises:
            PermanentError: `DeviceNodeMissing`: the spec cannot be written.
        """
        name = f"{uid}-{device}"
        kind = names.DOMAIN_CDI_CLAIM_KIND
        spec = assemble(kind, ContainerEdits(), [Device(name, made)])
        self._put(self._path(_CLASS, uid), spec)
        return f"{kind}={name}"

    def remove(self, uid: ClaimUID) -> None:
        """Remove a claim's spec; none there is fine.

        Raises:
            FileError: the system refused.
        """
        path = self._path(_CLASS, uid)
        self._written.pop(path, None)
        files.remove(path)

    def keep(self) -> None:
        """Put back what somebody removed or edited; a `stat` for what nobody has touched.

        Raises:
            CDIError: the system refused.
        """
        for path, (spec, written) in list(self._written.items()):
            if written is None or _file_id(path) != written:
                self._write(path, spec)

    def sweep(self, held: Collection[ClaimUID]) -> None:
        """Remove the specs of claims that are not `held`, and what writers left half done.

        Raises:
            FileError: the system refused; the rest stays, too.
        """
        kept = {self._path(_CLASS, uid) for uid in held}
        for path in self._root.glob(self._path(_CLASS, "*").name):
            if path in kept:
                self._remember(path)
            else:
                files.remove(path)
                LOG.info("A CDI spec of a claim that is not held is removed", file=str(path))
        files.remove_abandoned(self._root, before=inf, owner=f"{names.DOMAIN_CDI_VENDOR}-")

    def _put(self, path: Path, spec: Spec) -> None:
        try:
            self._write(path, spec)
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"a CDI spec cannot be written: {error}",
                "see that --cdi-root is a directory that can be written and has room",
            ) from error

    def _write(self, path: Path, spec: Spec) -> None:
        if not _says(path, spec):
            files.write(spec, path)
            LOG.v(4, "A CDI spec is written", file=str(path))
        self._written[path] = (spec, _file_id(path))

    def _remember(self, path: Path) -> None:
        """Look after a spec that an earlier process wrote."""
        if path in self._written:
            return
        try:
            self._written[path] = (files.read(path), _file_id(path))
        except CDIError as error:
            LOG.warning("A CDI spec of a prepared claim cannot be read", error=str(error))

    def _path(self, class_: str, id_: str) -> Path:
        return self._root / files.transient_name(names.DOMAIN_CDI_VENDOR, class_, id_)


def _file_id(path: Path) -> _FileID | None:
    """Which file is there, and when it was last written."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _says(path: Path, spec: Spec) -> bool:
    try:
        return path.read_bytes() == codec.dumps(spec, "yaml")
    except OSError:
        return False
