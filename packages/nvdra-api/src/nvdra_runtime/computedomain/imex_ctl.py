# SPDX-License-Identifier: Apache-2.0
"""Interprets the answers of nvidia-imex-ctl: only the word READY means ready. Pure.

Source: docs/reference/imex.md, "The check command"; docs/reference/nvml-simulator.md §16.2;
docs/design.md, "Settled".
"""

from typing import Final

CTL_PROGRAM: Final = "nvidia-imex-ctl"
"""The program that queries IMEX."""
READY_OUTPUT: Final = b"READY\n"
"""The whole output for an IMEX that is ready, standard error included."""
QUERY_TIMEOUT_S: Final = 5.0
"""For one query, which normally takes milliseconds."""

_MAX_LENGTH: Final = 200
_ANSWER_PREFIX: Final = "nvidia-imex says "
_STARTING: Final = f"{_ANSWER_PREFIX}INITIALIZING"


def not_ready_reason(code: int, output: bytes) -> str:
    """Why IMEX is not ready, by one answer of nvidia-imex-ctl; empty if IMEX is ready.

    Args:
        code: The exit code.
        output: Standard output and standard error together.
    """
    if code == 0 and output == READY_OUTPUT:
        return ""
    text = " ".join(output.decode(errors="replace").split())
    text = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    if code != 0:
        return f"{CTL_PROGRAM} ended with {code}" + (f": {text}" if text else "")
    return f"{_ANSWER_PREFIX}{text}" if text else f"{CTL_PROGRAM} printed nothing"


def is_answer(reason: str) -> bool:
    """Whether IMEX has answered at all, whatever it said.

    Args:
        reason: The result of `not_ready_reason`; anything else says that there was no answer.
    """
    return not reason or reason.startswith(_ANSWER_PREFIX)


def is_started(reason: str) -> bool:
    """Whether IMEX has finished its start and waits for other nodes.

    Args:
        reason: The result of `not_ready_reason`.
    """
    return reason.startswith(_ANSWER_PREFIX) and reason != _STARTING
