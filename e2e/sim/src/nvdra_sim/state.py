"""The state file of one node: made, read and changed from Python (spec/nvml-simulator.md §10, §18).

Every change is one transaction under `flock`; reading takes no lock. The library does the same on
the same bytes, so a change here is seen by the next NVML call of every process that maps the file.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, memmove, memset, sizeof
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from nvdra_sim import futex, image, layout, names
from nvdra_sim.description import Fault, Gpu, NodeDescription

DEFAULT_PATH = Path("/var/lib/nvdra-sim/state.bin")


class StateError(Exception):
    """There is no such state file, GPU or rule, or the file is not ours."""


@dataclass(frozen=True)
class RuleInForce:
    """A fault rule as it stands.

    Attributes:
        id: Its number, never reused while the file lives.
        fault: What it does.
        hits: How many calls it applied to.
    """

    id: int
    fault: Fault
    hits: int

    @property
    def is_spent(self) -> bool:
        """It applied as often as it should, and does nothing any more."""
        return self.fault.times is not None and self.hits >= self.fault.times


@dataclass(frozen=True)
class CallCount:
    """Calls of one NVML function since the last reset, in all processes that may write the file."""

    function: str
    calls: int
    errors: int


def create(path: Path, node: NodeDescription) -> State:
    """Makes the file of a node. An existing one is filled anew in place: others may map it.

    Raises:
        image.UnsupportedError: The description asks for what the library does not simulate.
        StateError: Something that is no state file is at `path`.
        OSError: The file cannot be made.
    """
    description, initial = image.description(node), image.initial_state(node)
    rules = [image.rule(fault) for fault in node.faults]
    text = node.model_dump_json().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path, os.O_CREAT) as file:
        if os.fstat(file).st_size not in (0, layout.FILE_SIZE):
            raise StateError(f"{path} exists and is no state file")
        os.ftruncate(file, layout.FILE_SIZE)
        state = State(path, _map(path))
        state._fill(node.name, description, initial, rules, text)
    return state


def load(path: Path) -> State:
    """Maps an existing file.

    Raises:
        StateError: There is none, or it has another layout than this version's.
    """
    try:
        state = State(path, _map(path))
    except (FileNotFoundError, ValueError):
        raise StateError(f"no state file at {path}; make one with: nvdra-simctl init") from None
    state._check()
    return state


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[int]:
    """Holds the writers' lock on a descriptor of its own: a mapping would keep its one locked."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    try:
        flock(file, LOCK_EX)
        yield file
    finally:
        os.close(file)


class State:
    """A mapped state file. Made by `create` and `load`."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._map = mapped

    # What it holds

    def node(self) -> NodeDescription:
        """The description that the file was made from."""
        length = self._header.json_length
        offset = layout.REGIONS["json"][0]
        return NodeDescription.model_validate_json(self._map[offset : offset + length])

    def gpu(self, selector: str) -> Gpu:
        """The GPU with this place in bus order, UUID or PCI bus id; raises StateError."""
        for gpu in self.node().gpus:
            if selector.lower() in (str(gpu.index), gpu.uuid.lower(), gpu.bus_id):
                return gpu
        raise StateError(f"the node has no GPU {selector!r}; give a number, UUID or PCI bus id")

    def snapshot(self) -> layout.NodeState:
        """A consistent copy of everything that changes."""
        copy = layout.NodeState()
        while True:
            generation = self._header.generation
            memmove(addressof(copy), addressof(self._copy(generation)), sizeof(copy))
            if self._header.generation == generation:
                return copy

    def initial(self) -> layout.NodeState:
        """How the node was when the file was made. A view, not to be changed."""
        initial: layout.NodeState = self._region("initial")
        return initial

    def events(self) -> tuple[layout.Event, ...]:
        """What happened since the last boot, the oldest first, as far as the ring holds it."""
        newest = self._header.event_head
        first = max(self._header.event_floor, newest - layout.MAX_EVENTS) + 1
        ring = self._region("events")
        return tuple(
            layout.Event.from_buffer_copy(ring[sequence % layout.MAX_EVENTS])
            for sequence in range(first, newest + 1)
        )

    @property
    def events_dropped(self) -> int:
        """Events that waiters lost because they came too late for them."""
        return int(self._header.events_dropped)

    @property
    def generation(self) -> int:
        """How many transactions there have been."""
        return int(self._header.generation)

    # Changing it

    @contextmanager
    def transaction(self) -> Iterator[layout.NodeState]:
        """A locked change: what the block does to the yielded state is published whole, or not."""
        with _locked(self.path):
            generation = self._header.generation
            following = self._copy(generation + 1)
            _overwrite(following, self._copy(generation))
            yield following
            self._header.generation = generation + 1
            self._wake()

    def announce(self, event: layout.Event) -> None:
        """Puts an event into the ring and numbers it; the caller holds a transaction."""
        sequence = self._header.event_head + 1
        record = self._region("events")[sequence % layout.MAX_EVENTS]
        record.sequence = 0  # readers leave it alone from here on
        event.sequence = 0
        _overwrite(record, event)
        record.sequence = sequence
        self._header.event_head = sequence

    def forget_events(self) -> None:
        """No waiter gets what happened so far; the caller holds a transaction."""
        self._header.event_floor = self._header.event_head

    def lose(self, gpu: Gpu) -> None:
        """The GPU falls off the bus: calls on it answer GPU_IS_LOST."""
        with self.transaction() as state:
            state.gpus[gpu.index].lost = 1

    def restore(self, gpu: Gpu) -> None:
        """A lost GPU answers again."""
        with self.transaction() as state:
            state.gpus[gpu.index].lost = 0

    # Fault rules

    def add_rule(self, fault: Fault) -> int:
        """Puts a rule in force for all processes; returns its id.

        Raises:
            image.UnsupportedError: Part of the rule would be without effect.
            StateError: There is no place left, or no function it could apply to.
        """
        if not names.matching(fault.function):
            raise StateError(f"no NVML function matches {fault.function!r}")
        rule = image.rule(fault)
        with self.transaction() as state:
            return self._insert(state, rule)

    def remove_rule(self, rule_id: int) -> None:
        """Ends a rule; raises StateError when there is none with this id."""
        with self.transaction() as state:
            for rule in state.rules:
                if rule.id == rule_id:
                    rule.id = 0
                    state.rule_count -= 1
                    return
            raise StateError(f"there is no rule {rule_id}")

    def clear_rules(self) -> None:
        """Ends all rules."""
        with self.transaction() as state:
            for rule in state.rules:
                rule.id = 0
            state.rule_count = 0

    def rules(self) -> tuple[RuleInForce, ...]:
        """All rules in the order of their ids, spent ones included."""
        hits = self._region("rule_hits")
        rules = (
            RuleInForce(rule.id, _fault(rule), hits[place].hits)
            for place, rule in enumerate(self.snapshot().rules)
            if rule.id
        )
        return tuple(sorted(rules, key=lambda rule: rule.id))

    # Call counters

    def counters(self) -> dict[str, CallCount]:
        """Every function that was called, by name."""
        counters = self._region("counters")
        return {
            one.name: CallCount(one.name, counters[place].calls, counters[place].errors)
            for place, one in enumerate(names.functions())
            if counters[place].calls
        }

    def reset_counters(self) -> None:
        """Starts counting from zero."""
        counters = self._region("counters")
        memset(addressof(counters), 0, sizeof(counters))

    # The bytes

    @property
    def _header(self) -> layout.Header:
        header: layout.Header = self._region("header")
        return header

    def _copy(self, generation: int) -> layout.NodeState:
        copy: layout.NodeState = self._region(f"state{generation & 1}")
        return copy

    def _region(self, name: str) -> Any:
        offset, kind = layout.REGIONS[name]
        return kind.from_buffer(self._map, offset)

    def _wake(self) -> None:
        """Tells waiters of all processes that something changed; the caller holds the lock."""
        self._header.wake = (self._header.wake + 1) & 0xFFFF_FFFF
        futex.wake(addressof(self._header) + layout.Header.wake.offset)

    def _check(self) -> None:
        header = self._header if len(self._map) == layout.FILE_SIZE else layout.Header()
        if header.magic != layout.MAGIC:
            raise StateError(f"{self.path} is no state file")
        if header.layout != layout.fingerprint():
            raise StateError(
                f"{self.path} is of another version; make it again with: nvdra-simctl init"
            )

    def _fill(
        self,
        name: str,
        description: layout.Description,
        initial: layout.NodeState,
        rules: list[layout.Rule],
        text: bytes,
    ) -> None:
        """Writes every region, the header last; the caller holds the lock."""
        header = self._header
        offset, kind = layout.REGIONS["json"]
        if len(text) > sizeof(kind):
            raise StateError(f"the description has {len(text)} bytes; {sizeof(kind)} fit")
        self._map[offset : offset + len(text)] = text
        _overwrite(self._region("description"), description)
        _overwrite(self._region("initial"), initial)
        self.reset_counters()
        published = self._copy(header.generation + 1)
        _overwrite(published, initial)
        if description.fabric_bring_up_ms:
            for gpu in published.gpus:
                gpu.fabric_since_ns = time.time_ns()
        for rule in rules:
            self._insert(published, rule)
        header.json_length = len(text)
        header.node_id = name.encode()[:63]
        header.size = layout.FILE_SIZE
        header.byte_order = layout.BYTE_ORDER
        header.layout = layout.fingerprint()
        header.generation += 1
        header.magic = layout.MAGIC
        self.forget_events()
        self._wake()

    def _insert(self, state: layout.NodeState, rule: layout.Rule) -> int:
        """Puts a rule into a free place, or into that of a spent one."""
        hits = self._region("rule_hits")
        for place, there in enumerate(state.rules):
            spent = there.times and hits[place].hits >= there.times
            if there.id and not spent:
                continue
            state.rule_count += 0 if there.id else 1
            hits[place].hits = hits[place].seen = 0
            rule.id = state.next_rule_id
            state.next_rule_id += 1
            state.rules[place] = rule
            return int(rule.id)
        raise StateError(f"{layout.MAX_RULES} rules are in force; remove one first")


def _overwrite(target: Any, source: Any) -> None:
    memmove(addressof(target), addressof(source), sizeof(source))


def _fault(rule: layout.Rule) -> Fault:
    return Fault(
        function=rule.function.decode(),
        gpu=None if rule.gpu == layout.ANY_GPU else rule.gpu,
        result=None if rule.result == layout.NO_RESULT else rule.result,
        activation_status=None,
        times=rule.times or None,
        after_calls=rule.after_calls,
        probability=rule.chance / layout.ALWAYS,
        delay_ms=rule.delay_ms,
        do_work=bool(rule.do_work),
        abort=bool(rule.abort),
    )
