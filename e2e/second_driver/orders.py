"""What a test tells the second driver, and what the driver tells back: files in one folder.

`orders.json` is read at every call, so an order holds from the moment it is written. `calls.jsonl`
gets one line per claim of a call.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

DRIVER = "second.example.com"
ENV = "SECOND_DRIVER_"
"""How the variables begin that a container has, one per device; their values are the names."""


@dataclass(frozen=True)
class Orders:
    """How the driver is to behave about a claim; a call is `prepare NAME` or `unprepare NAME`.

    Attributes:
        fail: Call → the error it is answered with.
        block: Calls that are not answered while they stand here.
    """

    fail: dict[str, str] = field(default_factory=dict)
    block: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Call:
    """One claim of one call."""

    method: str
    claim: str
    uid: str

    @property
    def order(self) -> str:
        """What orders about it are filed under."""
        return f"{self.method} {self.claim}"


class Desk:
    """The folder, as both sides use it."""

    def __init__(self, folder: Path) -> None:
        self._orders = folder / "orders.json"
        self._calls = folder / "calls.jsonl"
        self._open = folder / "open"

    @property
    def is_open(self) -> bool:
        """Whether the driver is registered and has published its devices."""
        return self._open.exists()

    def open(self) -> None:
        """Say so."""
        self._open.touch()

    def fail(self, call: str, text: str) -> None:
        """Answer that call with an error from now on."""
        orders = self.read()
        self._give(replace(orders, fail={**orders.fail, call: text}))

    def block(self, call: str) -> None:
        """Let that call hang from now on."""
        orders = self.read()
        self._give(replace(orders, block=[*orders.block, call]))

    def forgive(self, call: str) -> None:
        """Behave well about that call again."""
        orders = self.read()
        self._give(
            Orders(
                {other: text for other, text in orders.fail.items() if other != call},
                [other for other in orders.block if other != call],
            )
        )

    def forgive_all(self) -> None:
        """Behave well again."""
        self._give(Orders())

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

    def calls(self, claim: str) -> list[str]:
        """The methods called so far for the claims of that name, in their order."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        calls = [Call(**json.loads(line)) for line in lines]
        return [call.method for call in calls if call.claim == claim]

    def _give(self, orders: Orders) -> None:
        draft = self._orders.with_suffix(".new")
        draft.write_text(json.dumps(asdict(orders)))
        draft.replace(self._orders)
