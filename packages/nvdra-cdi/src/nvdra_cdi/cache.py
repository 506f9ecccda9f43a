# SPDX-License-Identifier: Apache-2.0
"""A cache of the devices in spec directories, up to date at every query (docs/reference/cdi.md §7).

There is no watcher thread. Each query compares the directories with the last scan, which costs one
`stat` call per file, and so sees every earlier change. A broken file is reported as an error under
its path and does not affect the others.

Two changes within one tick of the kernel's clock can leave a file with the same stamp. Before a
name is reported as unknown, files that changed that shortly before they were read are read again.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nvdra_cdi import files, index
from nvdra_cdi.errors import CDIError, FileError, UnresolvedDevicesError
from nvdra_cdi.index import CachedDevice, Index, LoadedSpec
from nvdra_cdi.model import ContainerEdits, Spec

DEFAULT_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""The directory for manually written specs, and the one for generated specs, which wins."""

_TICK_NS = 100_000_000  # ten times the longest tick of Linux, which has 100 to 1000 per second

_Stamp = tuple[int, int, int, int, int]  # device, inode, size, times of data and of inode in ns


@dataclass(frozen=True)
class _Directory:
    """The result of a directory scan. Two scans of an unchanged directory are equal.

    Attributes:
        files: The stamps of possible spec files by name, in order; None for a broken link.
        stamp: The stamp of the directory, or None if it does not exist.
        error: The reason why the directory cannot be read, or empty.
        is_missing: Whether the directory does not exist, which is an error only for auto refresh.
    """

    files: Mapping[str, _Stamp | None]
    stamp: _Stamp | None = None
    error: str = ""
    is_missing: bool = False


@dataclass(frozen=True)
class _File:
    """What was read from a file.

    Attributes:
        stamp: The file's stamp before it was read.
        content: The spec, or the reason why there is none.
        is_settled: Whether every later change shows in the stamp.
    """

    stamp: _Stamp | None
    content: Spec | CDIError
    is_settled: bool


class Cache:
    """The devices that the specs in some directories define.

    Methods are safe to call from several threads. They read files, and so they block.

    Args:
        directories: The directories, lowest priority first. They need not exist.
        auto_refresh: Whether every query looks for changes. If not, only `refresh` does.
        now_ns: The clock of the file system, in ns since the epoch.
    """

    def __init__(
        self,
        directories: Sequence[str | Path] = DEFAULT_DIRECTORIES,
        *,
        auto_refresh: bool = True,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        chosen = directories or DEFAULT_DIRECTORIES
        self._directories = tuple(os.path.normpath(directory) for directory in chosen)
        self._auto_refresh = auto_refresh
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._scanned: tuple[_Directory, ...] = ()
        self._files: dict[str, _File] = {}
        self._index = index.build(())
        self.refresh()

    def refresh(self) -> tuple[CDIError, ...]:
        """Read all files again, changed or not.

        Returns:
            The errors of files. The devices of all valid files can be resolved nevertheless.
        """
        with self._lock:
            self._load(tuple(map(_scan, self._directories)), known={})
            return tuple(chain.from_iterable(self._file_errors().values()))

    def get_device(self, qualified: str) -> CachedDevice | None:
        """The device with this name, or None if no spec or several specs define it."""
        return self._find([qualified]).get(qualified)

    def resolve(self, names: Sequence[str]) -> ContainerEdits:
        """All edits for these devices. The edits of each spec come once, before its first device.

        Raises:
            UnresolvedDevicesError: Some names are not defined. The error contains all of them.
        """
        found = self._find(names)
        missing = tuple(name for name in names if name not in found)
        if missing:
            raise UnresolvedDevicesError(missing)
        edits = ContainerEdits()
        begun: set[str] = set()
        for name in names:
            device = found[name]
            if device.spec.path not in begun:
                begun.add(device.spec.path)
                edits += device.spec.spec.container_edits
            edits += device.device.container_edits
        return edits

    def get_devices(self) -> dict[str, CachedDevice]:
        """All devices that can be resolved, by name, in the order of their names."""
        return dict(sorted(self._current().devices.items()))

    def list_devices(self) -> list[str]:
        """The qualified names of all devices that can be resolved, sorted."""
        return sorted(self._current().devices)

    def list_vendors(self) -> list[str]:
        """The vendors of all specs, sorted."""
        return sorted(self._current().specs)

    def list_classes(self) -> list[str]:
        """The classes of all specs, sorted, without duplicates."""
        specs = chain.from_iterable(self._current().specs.values())
        return sorted({spec.class_ for spec in specs})

    def get_vendor_specs(self, vendor: str) -> tuple[LoadedSpec, ...]:
        """The specs of a vendor, those of the lowest priority first."""
        return self._current().specs.get(vendor, ())

    def get_spec_errors(self, spec: LoadedSpec) -> tuple[CDIError, ...]:
        """The errors of the spec's file. As the file was readable, these are conflicts."""
        self._current()
        with self._lock:
            return self._file_errors().get(spec.path, ())

    def get_errors(self) -> dict[str, tuple[CDIError, ...]]:
        """All errors of files and directories, by path."""
        self._current()
        with self._lock:
            errors = self._file_errors()
            for path, error in self._directory_errors().items():
                errors[path] = (*errors.get(path, ()), error)
            return errors

    def get_spec_dirs(self) -> tuple[str, ...]:
        """The directories, lowest priority first."""
        return self._directories

    def has_spec_dir(self, directory: str) -> bool:
        """Whether one of the cache's directories exists, readable or not."""
        self._current()
        with self._lock:
            seen = dict(zip(self._directories, self._scanned, strict=True))
            return not seen[directory].is_missing

    def get_spec_dir_errors(self) -> dict[str, CDIError]:
        """All errors of directories, by path. A missing one is an error only with auto refresh."""
        self._current()
        with self._lock:
            return self._directory_errors()

    def write_spec(self, spec: Spec, name: str) -> Path:
        """Write a spec into the directory of the highest priority; see `files.write`.

        Args:
            spec: The document.
            name: The name of the file. `.yaml` is appended unless the name ends in it or `.json`.

        Raises:
            ValidationError: The spec breaks a rule.
            FileError: The file cannot be written.
        """
        path = self._path(name)
        files.write(spec, path)
        return path

    def remove_spec(self, name: str) -> None:
        """Remove a spec from the directory of the highest priority, if it exists.

        Raises:
            FileError: The file cannot be removed.
        """
        files.remove(self._path(name))

    def _path(self, name: str) -> Path:
        if not name or "/" in name or "\0" in name:
            raise FileError(f"{name!r} is not a file name")
        return Path(self._directories[-1], files.with_extension(name))

    def _find(self, names: Iterable[str]) -> Mapping[str, CachedDevice]:
        """The devices that exist, by name. If one is missing, hidden changes are looked for."""
        wanted = list(names)
        devices = self._current().devices
        if self._auto_refresh and not all(name in devices for name in wanted):
            devices = self._without_hidden_changes().devices
        return {name: devices[name] for name in wanted if name in devices}

    def _without_hidden_changes(self) -> Index:
        with self._lock:
            settled = {path: file for path, file in self._files.items() if file.is_settled}
            if len(settled) < len(self._files):
                self._load(tuple(map(_scan, self._directories)), known=settled)
            return self._index

    def _current(self) -> Index:
        with self._lock:
            if self._auto_refresh:
                seen = tuple(map(_scan, self._directories))
                if seen != self._scanned:
                    self._load(seen, known=self._files)
            return self._index

    def _load(self, seen: tuple[_Directory, ...], known: Mapping[str, _File]) -> None:
        read: dict[str, _File] = {}
        loaded: list[LoadedSpec] = []
        for priority, path, stamp in _candidates(self._directories, seen):
            file = read.get(path) or known.get(path)
            if file is None or file.stamp is None or file.stamp != stamp:
                file = self._read(path, stamp)
            read[path] = file
            if isinstance(file.content, Spec):
                loaded.append(LoadedSpec(file.content, path, priority))
        self._scanned, self._files, self._index = seen, read, index.build(loaded)

    def _read(self, path: str, stamp: _Stamp | None) -> _File:
        is_settled = stamp is not None and stamp[-1] < self._now_ns() - _TICK_NS
        try:
            return _File(stamp, files.read(path), is_settled)
        except CDIError as error:
            return _File(stamp, error, is_settled)

    def _file_errors(self) -> dict[str, tuple[CDIError, ...]]:
        errors: dict[str, tuple[CDIError, ...]] = {
            path: (file.content,)
            for path, file in self._files.items()
            if isinstance(file.content, CDIError)
        }
        for path, conflicts in self._index.conflicts.items():
            errors[path] = (*errors.get(path, ()), *conflicts)
        return errors

    def _directory_errors(self) -> dict[str, CDIError]:
        return {
            directory: FileError(f"{directory}: {seen.error}")
            for directory, seen in zip(self._directories, self._scanned, strict=True)
            if seen.error and (self._auto_refresh or not seen.is_missing)
        }


def spec_files(directory: str) -> list[str]:
    """The paths of the files in a directory that a cache reads, in the same order.

    Raises:
        FileError: The directory cannot be read.
    """
    found = _scan(os.path.normpath(directory))
    if found.error:
        raise FileError(f"{directory}: {found.error}")
    return [os.path.join(directory, name) for name in found.files]  # noqa: PTH118 - text, as given


def _candidates(
    directories: Iterable[str], seen: Iterable[_Directory]
) -> Iterator[tuple[int, str, _Stamp | None]]:
    for priority, (directory, found) in enumerate(zip(directories, seen, strict=True)):
        for name, stamp in found.files.items():
            yield priority, os.path.join(directory, name), stamp  # noqa: PTH118 - text, as configured


def _scan(directory: str) -> _Directory:
    try:
        stamp = _stamp(os.stat(directory))  # noqa: PTH116 - once per query, on text
    except OSError as error:
        message = f"failed to monitor for changes: {error.strerror}"
        is_missing = isinstance(error, FileNotFoundError)
        return _Directory({}, error=message, is_missing=is_missing)
    except ValueError as error:  # the path contains a NUL or cannot be encoded
        return _Directory({}, error=f"failed to monitor for changes: {error}")
    try:
        with os.scandir(directory) as entries:
            found = [
                entry
                for entry in entries
                if files.is_spec_name(entry.name) and not entry.is_dir(follow_symlinks=False)
            ]
    except OSError as error:
        return _Directory({}, stamp, f"failed to read the directory: {error.strerror}")
    found.sort(key=lambda entry: os.fsencode(entry.name))
    return _Directory({entry.name: _entry_stamp(entry) for entry in found}, stamp)


def _entry_stamp(entry: os.DirEntry[str]) -> _Stamp | None:
    try:
        return _stamp(entry.stat())
    except OSError:
        return None


def _stamp(found: os.stat_result) -> _Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
