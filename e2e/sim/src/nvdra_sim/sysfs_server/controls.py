# SPDX-License-Identifier: Apache-2.0
"""Which files are controls, and which procedure a write to one of them starts."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from nvdra_sim.pci import health_files, writes
from nvdra_sim.pci.writes import Machine, Procedure

HIDDEN = ".nvdra-sim"
"""A directory that no listing shows, for what real machines do without sysfs: kernel modules."""

Start = Callable[[Machine, str, bytes], Procedure]
"""Starts the procedure of a write, with the name of the file's directory and what was written."""

RESET_METHODS = frozenset({"flr", "bus", "pm", "af_flr", "acpi", "device_specific"})

_OF_DRIVER: dict[str, Start] = {
    "bind": lambda machine, driver, text: writes.bind(machine, driver, _word(text)),
    "unbind": lambda machine, driver, text: writes.unbind(machine, driver, _word(text)),
    "new_id": writes.new_id,
    "remove_id": writes.remove_id,
}
_OF_FUNCTION: dict[str, Start] = {
    "driver_override": writes.set_override,
    "remove": writes.remove,
    "rescan": lambda machine, _, text: writes.rescan(machine, text),
    "reset": writes.reset,
    "sriov_numvfs": writes.set_virtual_functions,
}
_OF_BUS: dict[str, Start] = {
    "drivers_probe": lambda machine, _, text: writes.drivers_probe(machine, _word(text)),
    "rescan": lambda machine, _, text: writes.rescan(machine, text),
}
_HIDDEN: dict[str, Start] = {
    "load": lambda machine, _, text: writes.load_module(machine, _word(text)),
    "unload": lambda machine, _, text: writes.unload_module(machine, _word(text)),
    "remove": lambda machine, _, text: writes.remove_modules(machine, _word(text)),
}
_FUNCTION_FILE = re.compile(r"/devices/pci.*/(?P<owner>[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/"
                            r"(?P<name>[a-z_]+)")  # fmt: skip
_HEALTH_FILE = re.compile(r"/devices/pci.*/(?P<owner>[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/"
                          r"(?P<name>[a-z_]+(/runtime_status)?)")  # fmt: skip
_DRIVER_FILE = re.compile(r"/bus/pci/drivers/(?P<owner>[^/]+)/(?P<name>[a-z_]+)")
_BUS_FILE = re.compile(r"/bus/pci/(?P<owner>)(?P<name>[a-z_]+)")
_HIDDEN_FILE = re.compile(rf"/{re.escape(HIDDEN)}/(?P<owner>)(?P<name>[a-z]+)")
_PERMANENT = frozenset({"/bus", "/bus/pci", "/bus/pci/devices", "/bus/pci/drivers", "/devices"})
_ROOT_COMPLEX = re.compile(r"/devices/pci[0-9a-f]+:[0-9a-f]+")
_PLACES = (
    (_FUNCTION_FILE, _OF_FUNCTION),
    (_DRIVER_FILE, _OF_DRIVER),
    (_BUS_FILE, _OF_BUS),
    (_HIDDEN_FILE, _HIDDEN),
)


def is_control(path: str) -> bool:
    """Whether a write to this path, relative to the mount and with a leading slash, is a command.

    The paths are those behind all links, as the kernel resolves links itself.
    """
    return _find(path) is not None


def is_permanent(path: str) -> bool:
    """Whether the path is a directory that exists as long as the node."""
    return path in _PERMANENT or _ROOT_COMPLEX.fullmatch(path) is not None


def is_hidden(path: str) -> bool:
    """Whether the path is a control that has no file."""
    return _HIDDEN_FILE.fullmatch(path) is not None and is_control(path)


def start(machine: Machine, path: str, content: bytes) -> Procedure:
    """The procedure of a write to a control. Raises KeyError if the path is none."""
    found = _find(path)
    if found is None:
        raise KeyError(path)
    run, owner = found
    return run(machine, owner, content)


def set_reset_method(file: Path, content: bytes) -> int:
    """A write to `reset_method` (`reset_method_store`): names of methods, or `default`."""
    words = content.decode("ascii", "replace").split()
    if words == ["default"]:
        words = ["flr", "bus"]
    if not RESET_METHODS.issuperset(words):
        return errno.EINVAL
    file.write_bytes(f"{' '.join(words)}\n".encode() if words else b"")
    return 0


def is_reset_method(path: str) -> bool:
    """Whether the path is the one control that only changes its own file."""
    found = _FUNCTION_FILE.fullmatch(path)
    return found is not None and found["name"] == "reset_method"


def health_file(path: str) -> tuple[str, str] | None:
    """Address and name of a file whose content depends on who uses the function; None: no such."""
    found = _HEALTH_FILE.fullmatch(path)
    if found is None or found["name"] not in health_files.CHANGING:
        return None
    return found["owner"], found["name"]


def _find(path: str) -> tuple[Start, str] | None:
    for pattern, starts in _PLACES:
        found = pattern.fullmatch(path)
        if found is not None and found["name"] in starts:
            return starts[found["name"]], found["owner"]
    return None


def _word(content: bytes) -> str:
    """A name as `sysfs_streq` compares it: with or without one newline at its end."""
    return os.fsdecode(content.partition(b"\0")[0]).removesuffix("\n")
