# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's GPUs by their names in the PCI id database, which distributions install as a file.

Sources: docs/reference/gpu-devices.md, "PCI record of one function"; the header of `pci.ids`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

PATHS: Final = tuple(
    Path(path)
    for path in (
        "/usr/share/misc/pci.ids",
        "/usr/local/share/pci.ids",
        "/usr/share/hwdata/pci.ids",
        "/usr/share/pci.ids",
    )
)
UNKNOWN: Final = "UNKNOWN_DEVICE"
"""The name of a device that the database does not have, as the reference publishes it."""

_NVIDIA: Final = re.compile(r"^10de  .*\n((?:[\t#].*\n|\n)*)", re.MULTILINE)
_DEVICE: Final = re.compile(r"^\t([0-9a-f]{4})  (.*)$", re.MULTILINE)


def read(paths: Sequence[Path] = PATHS) -> Mapping[int, str]:
    """The names of NVIDIA's devices, by number, from the first file that can be read."""
    for path in paths:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        section = _NVIDIA.search(f"{text}\n")
        found = _DEVICE.findall(section[1]) if section else []
        return {int(number, 16): name.strip() for number, name in found}
    return {}
