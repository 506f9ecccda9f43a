"""What nvidia-imex-ctl answers: READY is the word alone.

Source: spec/compute-domain.md §8.2; spec/nvml-simulator.md §16.2; design.md, "Settled".
"""

from typing import Final

CTL: Final = "nvidia-imex-ctl"
"""The program that asks IMEX."""
READY: Final = b"READY\n"
"""All that a ready IMEX says, on both streams together; NOT_READY is another word."""
TIMEOUT_S: Final = 5.0
"""For one answer; it takes milliseconds where all is well."""

_LONGEST: Final = 200
_SAYS: Final = "nvidia-imex says "
_STARTING: Final = f"{_SAYS}INITIALIZING"


def lack(code: int, output: bytes) -> str:
    """What is missing for READY, by an answer; empty when it is READY.

    Args:
        code: Exit code of nvidia-imex-ctl.
        output: What it wrote to standard output and standard error, together.
    """
    if code == 0 and output == READY:
        return ""
    said = " ".join(output.decode(errors="replace").split())
    said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
    if code != 0:
        return f"{CTL} ended with {code}" + (f": {said}" if said else "")
    return f"{_SAYS}{said}" if said else f"{CTL} printed nothing"


def is_started(lacking: str) -> bool:
    """Whether what is missing is the word of an IMEX that is past its start: it waits for others.

    Args:
        lacking: By `lack`.
    """
    return lacking.startswith(_SAYS) and lacking != _STARTING
