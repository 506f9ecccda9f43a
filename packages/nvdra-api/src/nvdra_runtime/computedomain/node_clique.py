# SPDX-License-Identifier: Apache-2.0
"""The file in a domain's directory with the clique that the GPUs of the node are in now.

The plugin of the node writes it, and the domain's daemon reads it: a daemon joins the clique that
the node had when its claim was prepared, and IMEX does not say that the GPUs have left it since.
Reading blocks: call it on a thread for files.
Source: docs/decisions/cd-plugin.md, "What if the clique changes while a daemon runs?".
"""

from pathlib import Path
from typing import Final

from nvdra_api.ids import CliqueID

FILE: Final = "node-clique"

_MAX_LENGTH: Final = 256


def content(clique: CliqueID) -> bytes:
    """The file's content; the clique is empty on a node without a fabric."""
    return f"{clique}\n".encode()


def read(directory: Path) -> CliqueID | None:
    """The clique of the node; None if the plugin does not say it, as one of an earlier release."""
    try:
        with (directory / FILE).open("rb") as file:
            text = file.read(_MAX_LENGTH + 1)
    except OSError:
        return None
    is_whole = text.endswith(b"\n") and len(text) <= _MAX_LENGTH
    return CliqueID(text.decode(errors="replace").strip()) if is_whole else None
