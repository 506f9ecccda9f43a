"""Writes CDI specs to the directory that the container runtime reads, and removes unused ones.

These calls block: they run on the thread for files.
"""

from collections.abc import Collection
from math import inf
from pathlib import Path
from typing import Final

from nvdra_api import names
from nvdra_cdi import codec, files
from nvdra_cdi.errors import CDIError
from nvdra_cdi.model import Spec
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.installation import FileID

LOG = logs.logger(__name__)

_CLASS: Final = "device"
_ABANDONED_S: Final = 3600.0
"""No other program takes so long to write a file: its temporary file is abandoned."""


class SpecFiles:
    """This driver's specs.

    The content of each spec in use is remembered, so that a file that is removed or edited can be
    restored.
    """

    def __init__(self, cdi_root: Path, clock: Clock) -> None:
        self._root = cdi_root
        self._clock = clock
        self._specs: dict[str, Spec] = {}
        self._files: dict[str, FileID | None] = {}

    def write(self, spec: NodeSpec) -> None:
        """Write the spec, unless the file has this content.

        Raises:
            FileError: The file cannot be written.
        """
        if spec.spec.devices:
            generation = spec.generation.name
            self._specs[generation] = spec.spec
            self._write_if_changed(generation)

    def restore(self) -> None:
        """Restore specs that were removed or edited.

        Raises:
            FileError: A file cannot be written.
        """
        for generation in list(self._specs):
            self._write_if_changed(generation)

    def has(self, generation: str) -> bool:
        """Whether the generation's spec exists."""
        return _file_id(self._path(generation)) is not None

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove all generations that are not `used`, and abandoned temporary files.

        Raises:
            FileError: A file cannot be removed; the following ones stay, too.
        """
        pattern = files.transient_name(names.GPU_CDI_VENDOR, _CLASS, "*")
        for path in self._root.glob(pattern):
            generation = path.stem.rpartition("_")[2]
            if generation in used:
                self._load(generation)
            else:
                self._specs.pop(generation, None)
                files.remove(path)
        # One plugin per node writes these, on this thread, so no write is in progress.
        files.remove_temporary_files(
            self._root, before=inf, name_prefix=f"{names.GPU_CDI_VENDOR}-{_CLASS}_"
        )
        files.remove_temporary_files(
            self._root, before=self._clock.now().timestamp() - _ABANDONED_S
        )

    def _write_if_changed(self, generation: str) -> None:
        path, spec = self._path(generation), self._specs[generation]
        file_id = _file_id(path)
        if file_id is None or file_id != self._files.get(generation):
            if not _has_content(path, spec):
                files.write(spec, path)
                LOG.info("CDI spec written", file=str(path))
            self._files[generation] = _file_id(path)

    def _load(self, generation: str) -> None:
        """Remember a spec that an earlier process wrote and a record refers to."""
        if generation in self._specs:
            return
        path = self._path(generation)
        try:
            self._specs[generation] = files.read(path)
        except CDIError as error:
            LOG.warning("A CDI spec of prepared claims cannot be read", error=str(error))
        else:
            self._files[generation] = _file_id(path)

    def _path(self, generation: str) -> Path:
        return self._root / files.transient_name(names.GPU_CDI_VENDOR, _CLASS, generation)


def _file_id(path: Path) -> FileID | None:
    try:
        return installation.file_id(path)
    except OSError:
        return None


def _has_content(path: Path, spec: Spec) -> bool:
    try:
        return path.read_bytes() == codec.dumps(spec, "yaml")
    except OSError:
        return False
