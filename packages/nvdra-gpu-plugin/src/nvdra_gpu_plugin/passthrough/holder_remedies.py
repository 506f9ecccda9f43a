# SPDX-License-Identifier: Apache-2.0
"""What an administrator does about a program that has a GPU open, by the program's name.

The kernel keeps 15 bytes of a name, which any program can give itself: it only chooses the advice.
"""

from collections.abc import Iterable, Mapping
from typing import Final

PERSISTENCED: Final = "nvidia-persiste"
"""nvidia-persistenced."""

_OTHERS: Final = "end these processes or delete their pods; nothing is unbound before"
_DCGM: Final = (
    "on nodes whose GPUs are passed to virtual machines, run DCGM 4.5 or later, with a "
    "dcgm-exporter for it, or stop both"
)
_REMEDIES: Final[Mapping[str, str]] = {
    PERSISTENCED: "nvidia-persistenced has not let go of the GPU by itself, as where its socket is "
    "not in the driver root: run nvidia-smi -pm 0 for this GPU where the daemon runs, or stop it",
    "nv-hostengine": _DCGM,
    "dcgm-exporter": _DCGM,
}


def remedy(commands: Iterable[str]) -> str:
    """What to do about these programs. Those without an advice of their own come last."""
    found = dict.fromkeys(_REMEDIES.get(command, _OTHERS) for command in commands)
    own = [text for text in found if text != _OTHERS]
    return "; ".join([*own, _OTHERS] if _OTHERS in found or not own else own)
