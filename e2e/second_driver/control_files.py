# SPDX-License-Identifier: Apache-2.0
"""Instructions of a test to the second driver, and the driver's record of calls, as files.

`orders.json` is read at every call, so that instructions take effect at once. `calls.jsonl` gets
one
line per claim of a call.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

DRIVER = "second.example.com"
ENV_PREFIX = "SECOND_DRIVER_"
"""The prefix of the variables in a container, one per device; their values are the device names."""


@dataclass(frozen=True)
class Instructions:
    """How the driver answers; a call is `prepare CLAIM` or `unprepare CLAIM`.

    Attributes:
        fail: Call → the error to answer with.
        block: The calls that are not answered while they are listed here.
    """

    fail: dict[str, str] = field(default_factory=dict)
    block: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RecordedCall:
    """One claim of one call."""

    method: str
    claim: str
    uid: str

    @property
    def order(self) -> str:
        """The key of instructions for this call."""
        return f"{self.method} {self.claim}"


class ControlDir:
    """The directory with these files, which both sides use."""

    def __init__(self, folder: Path) -> None:
        self._orders = folder / "orders.json"
        self._calls = folder / "calls.jsonl"
        self._open = folder / "open"

    @property
    def is_registered(self) -> bool:
        """Whether the driver is registered and has published its devices."""
        return self._open.exists()

    def mark_registered(self) -> None:
        """Record that the driver is registered and has published its devices."""
        self._open.touch()

    def fail(self, call: str, text: str) -> None:
        """Answer that call with an error from now on."""
        orders = self.read()
        self._write(replace(orders, fail={**orders.fail, call: text}))

    def block(self, call: str) -> None:
        """Do not answer that call from now on."""
        orders = self.read()
        self._write(replace(orders, block=[*orders.block, call]))

    def stop_failing(self, call: str) -> None:
        """Answer that call normally again."""
        orders = self.read()
        self._write(
            Instructions(
                {other: text for other, text in orders.fail.items() if other != call},
                [other for other in orders.block if other != call],
            )
        )

    def clear(self) -> None:
        """Answer all calls normally again."""
        self._write(Instructions())

    def read(self) -> Instructions:
        """The current instructions; by default all calls are answered normally."""
        try:
            text = self._orders.read_text()
        except FileNotFoundError:
            return Instructions()
        return Instructions(**json.loads(text))

    def record_call(self, call: RecordedCall) -> None:
        """Record a call."""
        with self._calls.open("a") as lines:
            lines.write(json.dumps(asdict(call)) + "\n")

    def calls(self, claim: str) -> list[str]:
        """The methods that were called for claims of that name, in order."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        calls = [RecordedCall(**json.loads(line)) for line in lines]
        return [call.method for call in calls if call.claim == claim]

    def _write(self, orders: Instructions) -> None:
        draft = self._orders.with_suffix(".new")
        draft.write_text(json.dumps(asdict(orders)))
        draft.replace(self._orders)
