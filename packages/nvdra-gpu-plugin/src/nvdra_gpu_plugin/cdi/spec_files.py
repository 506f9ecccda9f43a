# SPDX-License-Identifier: Apache-2.0
"""Writes CDI specs to the directory that the container runtime reads, and removes unused ones.

These calls block: they run on the thread for files.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nvdra_api import names
from nvdra_api.ids import DeviceUUID
from nvdra_cdi import files
from nvdra_cdi.errors import CDIError
from nvdra_cdi.model import ContainerEdits, Spec
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi import file_checks, node_spec
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.devices.claimed_names import ClaimedNames
from nvdra_gpu_plugin.driver.installation import FileID

LOG = logs.logger(__name__)

_CLASS: Final = "device"
_ABANDONED_S: Final = 3600.0
"""No other program takes so long to write a file: its temporary file is abandoned."""


class SpecFiles:
    """This driver's specs.

    The content of each spec in use is remembered, so that a file that is removed or edited can be
    restored.

    Attributes:
        driver_versions: The version of the driver that each generation's spec is of. It is replaced
            as a whole.
    """

    def __init__(self, cdi_root: Path, clock: Clock) -> None:
        self.driver_versions: Mapping[str, str] = MappingProxyType({})
        self._root = cdi_root
        self._clock = clock
        self._specs: dict[str, Spec] = {}
        self._files: dict[str, FileID | None] = {}
        self._known_paths: dict[str, Path] = {}
        self._current: NodeSpec | None = None
        self._sockets: ContainerEdits | None = None
        self._claimed = ClaimedNames()
        self._given_out: dict[str, dict[str, DeviceUUID]] = {}

    def open(self, claimed: ClaimedNames) -> None:
        """Read the specs that prepared claims refer to, before the first one is written."""
        self._claimed = claimed
        for generation in claimed.by_generation:
            if self.has(generation):
                self._load(generation)

    def write(self, spec: NodeSpec) -> None:
        """Write the spec, unless the file has this content.

        It has all names of its generation that claims may have been answered with: those of
        prepared claims, and those that this process has given out. Specs of other generations get
        the sockets of this one.

        Raises:
            FileError: The file cannot be written.
        """
        if not spec.devices:
            return
        generation, self._current = spec.generation.name, spec
        if spec.sockets != self._sockets:
            self._sockets = spec.sockets
            for other, document in list(self._specs.items()):
                if other != generation:
                    self._remember(other, document)
                    self._write_if_changed(other)
        given_out = self._given_out.setdefault(generation, {})
        given_out.update(spec.cdi_names)
        earlier = self._claimed.of_earlier_boots
        if earlier:
            self._remove_elsewhere(earlier, generation)
        claimed = self._claimed.by_generation.get(generation, {})
        self._remember(generation, spec.document({**given_out, **claimed, **earlier}))
        self._write_if_changed(generation)

    def update(self, spec: NodeSpec, claimed: ClaimedNames) -> None:
        """Write the spec with the sockets that exist now and the names of prepared claims.

        Raises:
            FileError: The file cannot be written.
        """
        self._claimed = claimed
        self.write(spec.with_present_sockets())

    def is_written(self, spec: NodeSpec) -> bool:
        """Whether this is the spec that was last written, also by a claim."""
        return spec == self._current or not spec.devices

    def restore(self) -> None:
        """Restore specs that were removed or edited.

        Raises:
            FileError: A file cannot be written.
        """
        for generation in list(self._specs):
            self._write_if_changed(generation)

    def has(self, generation: str) -> bool:
        """Whether the generation's spec exists."""
        return bool(generation) and file_checks.file_id(self._path(generation)) is not None

    def generation_of(self, cdi_name: str) -> str:
        """The generation of a spec that has this device; empty if none has it."""
        for path in self._paths():
            generation = _generation(path)
            self._load(generation)
            if generation in self._specs and _has_device(self._specs[generation], cdi_name):
                return generation
        return ""

    def remove_unused(self, claimed: ClaimedNames, used: Collection[str]) -> None:
        """Remove all specs that neither prepared claims nor `used` need, and what was abandoned.

        Args:
            claimed: The names of prepared claims. The current spec gets those that it lacks.
            used: Generations that are used apart from that.

        Raises:
            FileError: A file cannot be written or removed; the following ones stay, too.
        """
        self._claimed = claimed
        if self._current is not None:
            self.write(self._current)
        for path in self._paths():
            generation = _generation(path)
            if generation in used or generation in claimed.by_generation:
                self._load(generation)
            else:
                self._forget(generation)
                files.remove(path)
        # One plugin per node writes these, on this thread, so no write is in progress.
        files.remove_temporary_files(
            self._root, before=inf, name_prefix=f"{names.GPU_CDI_VENDOR}-{_CLASS}_"
        )
        files.remove_temporary_files(
            self._root, before=self._clock.now().timestamp() - _ABANDONED_S
        )

    def _remove_elsewhere(self, cdi_names: Collection[str], generation: str) -> None:
        """Remove names from the specs of other generations: an earlier boot has left them."""
        for path in self._paths():
            other = _generation(path)
            if other == generation:
                continue
            self._load(other)
            document = self._specs.get(other)
            if document is None:
                continue
            devices = tuple(device for device in document.devices if device.name not in cdi_names)
            if devices and len(devices) < len(document.devices):
                self._remember(other, replace(document, devices=devices))
                self._write_if_changed(other)
            elif not devices:
                self._forget(other)
                files.remove(path)

    def _write_if_changed(self, generation: str) -> None:
        path, spec = self._path(generation), self._specs[generation]
        file_id = file_checks.file_id(path)
        if file_id is None or file_id != self._files.get(generation):
            if not file_checks.has_content(path, spec):
                files.write(spec, path)
                LOG.info("CDI spec written", file=str(path))
            self._files[generation] = file_checks.file_id(path)

    def _load(self, generation: str) -> None:
        """Remember a spec that an earlier process wrote and a record refers to."""
        if generation in self._specs:
            return
        path = self._path(generation)
        try:
            document = files.read(path)
        except CDIError as error:
            LOG.warning("A CDI spec of prepared claims cannot be read", error=str(error))
        else:
            self._remember(generation, document)

    def _remember(self, generation: str, document: Spec) -> None:
        if self._sockets is not None:
            document = node_spec.with_sockets(document, self._sockets)
        if document != self._specs.get(generation):
            self._specs[generation] = document
            self._files.pop(generation, None)
            self._set_driver_versions()

    def _forget(self, generation: str) -> None:
        self._files.pop(generation, None)
        if self._specs.pop(generation, None) is not None:
            self._set_driver_versions()

    def _set_driver_versions(self) -> None:
        versions = {name: node_spec.driver_version(spec) for name, spec in self._specs.items()}
        self.driver_versions = MappingProxyType(versions)

    def _paths(self) -> list[Path]:
        """The files of all generations; none if the directory cannot be read."""
        pattern = files.transient_name(names.GPU_CDI_VENDOR, _CLASS, "*")
        try:
            return sorted(self._root.glob(pattern))
        except OSError as error:
            LOG.warning("The directory of CDI specs cannot be read", error=str(error))
            return []

    def _path(self, generation: str) -> Path:
        path = self._known_paths.get(generation)
        if path is None:  # to make it takes as long as to look at the file, which each prepare does
            path = self._root / files.transient_name(names.GPU_CDI_VENDOR, _CLASS, generation)
            self._known_paths[generation] = path
        return path


def _generation(path: Path) -> str:
    return path.stem.rpartition("_")[2]


def _has_device(document: Spec, cdi_name: str) -> bool:
    return any(device.name == cdi_name for device in document.devices)
