"""What a test tells the second driver, and what the driver tells back: files in one folder.

`orders.json` is read at every call, so an order holds from the moment it is written. `calls.jsonl`
gets one line per claim of a call.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

DRIVER = "second.example.com"
ENV = "SECOND_DEVICE"
"""What a container sees of a device: its name in this variable."""


@dataclass(frozen=True)
class Orders:
    """How the driver is to behave.

    Attributes:
        fail: `prepare` or `unprepare` → the error that such calls are answered with.
        block: Calls that are not answered while they stand here: `prepare`, `unprepare`.
        ignore: Names of claims that are left out of the answer.
    """

    fail: dict[str, str] = field(default_factory=dict)
    block: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """One claim of one call."""

    method: str
    name: str
    uid: str


class Desk:
    """The folder, as both sides use it."""

    def __init__(self, folder: Path) -> None:
        self._orders = folder / "orders.json"
        self._calls = folder / "calls.jsonl"

    def give(self, orders: Orders) -> None:
        """From now on, behave so."""
        draft = self._orders.with_suffix(".new")
        draft.write_text(json.dumps(asdict(orders)))
        draft.replace(self._orders)

    def read(self) -> Orders:
        """How to behave; as a good driver does while nothing else was said."""
        try:
            text = self._orders.read_text()
        except FileNotFoundError:
            return Orders()
        return Orders(**json.loads(text))

    def note(self, call: Call) -> None:
        """Tell of a call that has arrived."""
        with self._calls.open("a") as lines:
            lines.write(json.dumps(asdict(call)) + "\n")

    def calls(self, name: str) -> list[str]:
        """The methods called so far for the claim of that name, in their order."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        calls = [Call(**json.loads(line)) for line in lines]
        return [call.method for call in calls if call.name == name]
