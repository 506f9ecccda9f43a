"""What nvidia-imex-ctl answers, and when to ask it again.

Source: spec/compute-domain.md §8.2; spec/nvml-simulator.md §16.2; design.md, "Settled".
"""

from typing import Final

from nvdra_api.protocol.backoff import Backoff

READY: Final = b"READY\n"
"""All that a ready IMEX says, on both streams together; NOT_READY is another word."""

FORMING: Final = Backoff(first_s=0.2, ceiling_s=3.0)
"""Between questions while it is not ready."""
STABLE_S: Final = 10.0
"""Between questions while it is: its end is seen without asking, this finds one that hangs."""
TIMEOUT_S: Final = 5.0
"""For one answer; it takes milliseconds where all is well."""

_LONGEST: Final = 200


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
        return f"nvidia-imex-ctl ended with {code}" + (f": {said}" if said else "")
    return f"nvidia-imex says {said}" if said else "nvidia-imex-ctl printed nothing"


def pause_s(unready: int, chance: float) -> float:
    """Seconds until the next question.

    Args:
        unready: Answers other than READY in a row; 0 after READY.
        chance: A random number, 0 ≤ chance < 1.
    """
    return FORMING.delay(unready, chance) if unready else STABLE_S
