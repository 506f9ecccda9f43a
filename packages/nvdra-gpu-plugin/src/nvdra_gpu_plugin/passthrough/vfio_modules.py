# SPDX-License-Identifier: Apache-2.0
"""Which module of the kernel drives a function for vfio, whether it is there, and its loading.

A variant of vfio-pci names the devices that it knows by an alias `vfio_pci:<pattern>`. On Linux
6.12, vfio-pci itself has such a line, of wildcards only. Loading blocks: it runs on a worker's
thread.
Sources: docs/reference/gpu-devices.md, "Fields of a VFIO device"; man 8 modprobe;
Documentation/driver-api/vfio-pci-device-specific-driver-acceptance.rst of Linux.
"""

import os
import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_runtime.node.host import Host

VFIO_PCI: Final = "vfio_pci"
MODPROBE: Final = ("modprobe",)
LOAD_TIMEOUT_S: Final = 20.0
"""Loading vfio_pci with all it depends on takes 0.1 s on a real machine, and seconds in an emulated
one."""

_ALIAS: Final = re.compile(r"^alias vfio_pci:(\S+) (\S+)$", re.MULTILINE)
_LONG: Final = r"(\*|[0-9A-F]{8})"
_SHORT: Final = r"(\*|[0-9A-Fa-f]{2})"
_FIELDS: Final = re.compile(
    f"(?:pci:)?v{_LONG}d{_LONG}sv{_LONG}sd{_LONG}bc{_SHORT}sc{_SHORT}i{_SHORT}"
)
"""Vendor, device, both of the subsystem, base class, subclass, interface: `pci_uevent` of Linux."""
_LISTS: Final = ("modules.alias", "modules.dep", "modules.builtin")
_FILE: Final = re.compile(r"([^/\s:]+)\.ko(?:\.\w+)?(?::.*)?$")


class ModuleError(Exception):
    """A module cannot be loaded; the text says why."""


@dataclass(frozen=True, slots=True)
class VfioModules:
    """The modules of vfio on the node.

    Attributes:
        aliases: The kernel's `modules.alias`; empty if it is not there.
        available: The modules that are loaded, built in, or can be loaded, with `_` for `-`.
    """

    aliases: str
    available: frozenset[str]

    def module_for(self, modalias: str) -> str | None:
        """The module for a function; None if the kernel does not have it."""
        module = choose(self.aliases, modalias)
        return module if module in self.available else None


def choose(aliases: str, modalias: str) -> str:
    """The module whose pattern has the fewest wildcards; vfio_pci if none matches."""
    wanted = _FIELDS.fullmatch(modalias)
    if wanted is None:
        return VFIO_PCI
    matches = _matches(aliases, [text.upper() for text in wanted.groups()])
    _, module = min(matches, key=lambda match: match[0], default=(0, VFIO_PCI))
    return module


class ModuleFiles:
    """What the node's kernel has of modules. The lists of one kernel are read once."""

    def __init__(self, host: Host, modules_root: Path, release: str | None = None) -> None:
        """Create it without reading.

        Args:
            host: Where sysfs is.
            modules_root: The node's `/lib/modules`.
            release: The kernel's release; by default, that of the running one.
        """
        self._host = host
        self._directory = modules_root / (release or os.uname().release)
        self._times: tuple[int, ...] = ()
        self._aliases = ""
        self._installed: frozenset[str] = frozenset()

    def read(self) -> VfioModules:
        """Read what modules there are. What cannot be read is not there."""
        times = tuple(_time(self._directory / name) for name in _LISTS)
        if times != self._times:
            self._times = times
            self._aliases, *lists = (_text(self._directory / name) for name in _LISTS)
            lines = "\n".join(lists).splitlines()
            files = (_FILE.search(line.partition(":")[0]) for line in lines)
            self._installed = frozenset(_canonical(found[1]) for found in files if found)
        try:
            loaded = {path.name for path in (self._host.sys / "module").iterdir()}
        except OSError:
            loaded = set()
        return VfioModules(self._aliases, self._installed | loaded)


def driver_of(module: str, drivers: Collection[str]) -> str | None:
    """The driver of a module by its name in `/sys/bus/pci/drivers`; None if it is not registered.

    vfio_pci registers `vfio-pci`; its variants mostly register their own name.
    """
    return next((name for name in (module, module.replace("_", "-")) if name in drivers), None)


def load(module: str, modprobe: Sequence[str] = MODPROBE) -> None:
    """Load a module, unless it is loaded.

    Raises:
        ModuleError: It cannot be loaded.
    """
    command = [*modprobe, module]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModuleError(str(error)) from error
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip() or "it said nothing"
        raise ModuleError(f"{' '.join(command)} ended with {done.returncode}: {said}")


def _matches(aliases: str, wanted: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The modules that match, with how many wildcards their patterns have."""
    for pattern, module in _ALIAS.findall(aliases):
        found = _FIELDS.fullmatch(pattern)
        if found is None:
            continue
        fields = [text.upper() for text in found.groups()]
        if all(text in ("*", value) for text, value in zip(fields, wanted, strict=True)):
            yield fields.count("*"), _canonical(module)


def _canonical(module: str) -> str:
    return module.replace("-", "_")


def _time(path: Path) -> int:
    """When a file was changed, in nanoseconds; -1 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
