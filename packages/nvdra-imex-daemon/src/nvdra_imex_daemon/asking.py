"""When to ask IMEX again; `nvdra_api.protocol.imex` says what its answer means."""

from typing import Final

from nvdra_api.protocol.backoff import Backoff

FORMING: Final = Backoff(first_s=0.2, ceiling_s=3.0)
"""Between questions while it is not ready."""
STABLE_S: Final = 10.0
"""Between questions while it is: its end is seen without asking, this finds one that hangs."""


def pause_s(unready: int, chance: float) -> float:
    """Seconds until the next question.

    Args:
        unready: Answers other than READY in a row; 0 after READY.
        chance: A random number, 0 ≤ chance < 1.
    """
    return FORMING.delay(unready, chance) if unready else STABLE_S
