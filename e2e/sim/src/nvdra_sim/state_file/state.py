# SPDX-License-Identifier: Apache-2.0
"""Create, read and change the state file of a node (docs/reference/nvml-simulator.md §10, §18).

Every change is a transaction under `flock`. Reading does not lock. The C library works in the same
way on the same bytes, so the next NVML call of every process that maps the file sees a change.
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

from nvdra_sim.description import Fault, Gpu, NodeDescription
from nvdra_sim.native import nvml_functions
from nvdra_sim.state_file import active_rules, encoding, futex, layout
from nvdra_sim.state_file.active_rules import ActiveRule

DEFAULT_PATH = Path("/var/lib/nvdra-sim/state.bin")


class StateError(Exception):
    """The state file, GPU or rule does not exist, or the file is not a state file."""


@dataclass(frozen=True)
class CallCount:
    """The calls of one NVML function since the last reset, by processes with write access."""

    function: str
    calls: int
    errors: int


def create(path: Path, node: NodeDescription, proc_root: Path | None = None) -> State:
    """Creates the state file of a node. An existing one is overwritten in place.

    Args:
        path: The file.
        node: The node.
        proc_root: The simulated /proc, in which the capability files of MIG instances come and go.

    Raises:
        encoding.UnsupportedError: The library does not simulate the described behaviour.
        StateError: The file at `path` is not a state file.
        OSError: The file cannot be created.
    """
    description, initial = encoding.description(node), encoding.initial_state(node)
    rules = [encoding.rule(fault) for fault in node.faults]
    text = node.model_dump_json().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path, os.O_CREAT) as file:
        if os.fstat(file).st_size not in (0, layout.FILE_SIZE):
            raise StateError(f"{path} exists and is not a state file")
        os.ftruncate(file, layout.FILE_SIZE)
        state = State(path, _map(path))
        state._fill(node.name, description, initial, rules, text)
        state._set_proc_root(proc_root)
    return state


def load(path: Path) -> State:
    """Opens an existing state file.

    Raises:
        StateError: The file does not exist, or has the layout of another version.
    """
    try:
        state = State(path, _map(path))
    except (FileNotFoundError, ValueError):
        raise StateError(f"no state file at {path}; create one with: nvdra-simctl init") from None
    state._check()
    return state


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[int]:
    """Holds the write lock on a separate descriptor, as a mapping would keep its own locked."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    try:
        flock(file, LOCK_EX)
        yield file
    finally:
        os.close(file)


class State:
    """An open state file, from `create` or `load`."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._map = mapped
        self._parsed: tuple[bytes, NodeDescription] | None = None

    # Reading

    def description(self) -> NodeDescription:
        """The description of the node, which is parsed again only when it is another one."""
        length = self._header.json_length
        offset = layout.REGIONS["json"][0]
        text = self._map[offset : offset + length]
        if self._parsed is None or self._parsed[0] != text:
            self._parsed = text, NodeDescription.model_validate_json(text)
        return self._parsed[1]

    def gpu(self, selector: str) -> Gpu:
        """The GPU with this index in bus order, UUID or PCI bus id. Raises StateError."""
        for gpu in self.description().gpus:
            if selector.lower() in (str(gpu.index), gpu.uuid.lower(), gpu.bus_id):
                return gpu
        raise StateError(f"the node has no GPU {selector!r}; use an index, UUID or PCI bus id")

    def snapshot(self) -> layout.NodeState:
        """A consistent copy of the current state."""
        copy = layout.NodeState()
        while True:
            generation = self._header.generation
            memmove(addressof(copy), addressof(self._copy(generation)), sizeof(copy))
            if self._header.generation == generation:
                return copy

    def initial(self) -> layout.NodeState:
        """The initial state of the node. Do not modify it."""
        initial: layout.NodeState = self._region("initial")
        return initial

    def events(self) -> tuple[layout.Event, ...]:
        """The events since the last boot that are still in the ring, the oldest first."""
        newest = self._header.event_head
        first = max(self._header.event_floor, newest - layout.MAX_EVENTS) + 1
        ring = self._region("events")
        return tuple(
            layout.Event.from_buffer_copy(ring[sequence % layout.MAX_EVENTS])
            for sequence in range(first, newest + 1)
        )

    @property
    def events_dropped(self) -> int:
        """The number of events that waiters missed because they were overwritten."""
        return int(self._header.events_dropped)

    @property
    def proc_root(self) -> Path | None:
        """The simulated /proc, in which the capability files of MIG instances come and go."""
        return Path(os.fsdecode(self._header.proc_root)) if self._header.proc_root else None

    @property
    def dev_root(self) -> Path | None:
        """The directory of the device nodes."""
        return Path(os.fsdecode(self._header.dev_root)) if self._header.dev_root else None

    @property
    def sys_root(self) -> Path | None:
        """The plain files of sysfs, below which the drivers' links come and go."""
        return Path(os.fsdecode(self._header.sys_root)) if self._header.sys_root else None

    @property
    def sys_mount(self) -> Path | None:
        """Where the server of sysfs is mounted that a node has had last."""
        return Path(os.fsdecode(self._header.sys_mount)) if self._header.sys_mount else None

    @property
    def generation(self) -> int:
        """The number of transactions so far."""
        return int(self._header.generation)

    # Changing

    @contextmanager
    def transaction(self) -> Iterator[layout.NodeState]:
        """Locks the file and yields the state to change. The change is published atomically."""
        with _locked(self.path):
            generation = self._header.generation
            following = self._copy(generation + 1)
            _overwrite(following, self._copy(generation))
            yield following
            self._header.generation = generation + 1
            self._wake()

    def move_proc_root(self, proc_root: Path) -> None:
        """Says where the simulated /proc is now. Raises StateError if its path is too long."""
        with _locked(self.path):
            self._set_proc_root(proc_root)

    def move_roots(self, *, dev_root: Path, sys_root: Path) -> None:
        """Says where the device nodes and the plain sysfs are. Raises StateError if too long."""
        with _locked(self.path):
            self._set_root("dev_root", dev_root)
            self._set_root("sys_root", sys_root)

    def move_sys_mount(self, sys_mount: Path | None) -> None:
        """Says where a server answers for sysfs; None: nowhere. Raises StateError if too long."""
        with _locked(self.path):
            self._set_root("sys_mount", sys_mount)

    def append_event(self, event: layout.Event) -> None:
        """Appends an event to the ring. The caller holds a transaction."""
        sequence = self._header.event_head + 1
        record = self._region("events")[sequence % layout.MAX_EVENTS]
        record.sequence = 0  # from here on, readers ignore the record
        event.sequence = 0
        _overwrite(record, event)
        record.sequence = sequence
        self._header.event_head = sequence

    def discard_events(self) -> None:
        """Discards all events. The caller holds a transaction."""
        self._header.event_floor = self._header.event_head

    def lose(self, gpu: Gpu) -> None:
        """Makes the GPU fall off the bus: calls on it return GPU_IS_LOST."""
        with self.transaction() as state:
            state.gpus[gpu.index].lost = 1

    def restore(self, gpu: Gpu) -> None:
        """Makes a lost GPU work again."""
        with self.transaction() as state:
            state.gpus[gpu.index].lost = 0

    # Fault rules

    def add_rule(self, fault: Fault) -> int:
        """Adds a rule for all processes and returns its id.

        Raises:
            encoding.UnsupportedError: A part of the rule would have no effect.
            StateError: There is no room for another rule, or no function matches it.
        """
        if not nvml_functions.matching(fault.function):
            raise StateError(f"no NVML function matches {fault.function!r}")
        rule = encoding.rule(fault)
        with self.transaction() as state:
            return self._insert(state, rule)

    def remove_rule(self, rule_id: int) -> None:
        """Removes a rule. Raises StateError if there is no rule with this id."""
        with self.transaction() as state:
            for rule in state.rules:
                if rule.id == rule_id:
                    rule.id = 0
                    state.rule_count -= 1
                    return
            raise StateError(f"there is no rule {rule_id}")

    def clear_rules(self) -> None:
        """Removes all rules."""
        with self.transaction() as state:
            for rule in state.rules:
                rule.id = 0
            state.rule_count = 0

    def rules(self) -> tuple[ActiveRule, ...]:
        """All rules in the order of their ids, including spent ones."""
        hits = self._region("rule_hits")
        rules = (
            ActiveRule(rule.id, active_rules.fault(rule), hits[place].hits)
            for place, rule in enumerate(self.snapshot().rules)
            if rule.id
        )
        return tuple(sorted(rules, key=lambda rule: rule.id))

    # Call counters

    def counters(self) -> dict[str, CallCount]:
        """The counters of all called functions, by name."""
        counters = self._region("counters")
        return {
            one.name: CallCount(one.name, counters[place].calls, counters[place].errors)
            for place, one in enumerate(nvml_functions.functions())
            if counters[place].calls
        }

    def reset_counters(self) -> None:
        """Resets all counters to zero."""
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

    def _set_proc_root(self, proc_root: Path | None) -> None:
        """Sets the simulated /proc. The caller holds the lock."""
        text = b"" if proc_root is None else os.fsencode(proc_root.absolute())
        if len(text) >= layout.MAX_PROC_ROOT:
            raise StateError(f"{proc_root} is longer than {layout.MAX_PROC_ROOT - 1} bytes")
        self._header.proc_root = text

    def _set_root(self, name: str, root: Path | None) -> None:
        """Sets another root. The caller holds the lock."""
        text = b"" if root is None else os.fsencode(root.absolute())
        if len(text) >= layout.MAX_OTHER_ROOT:
            raise StateError(f"{root} is longer than {layout.MAX_OTHER_ROOT - 1} bytes")
        setattr(self._header, name, text)

    def _wake(self) -> None:
        """Wakes the waiters of all processes. The caller holds the lock."""
        self._header.wake = (self._header.wake + 1) & 0xFFFF_FFFF
        futex.wake(addressof(self._header) + layout.Header.wake.offset)

    def _check(self) -> None:
        header = self._header if len(self._map) == layout.FILE_SIZE else layout.Header()
        if header.magic != layout.MAGIC:
            raise StateError(f"{self.path} is not a state file")
        if header.layout != layout.fingerprint():
            raise StateError(
                f"{self.path} has another version; create it again with: nvdra-simctl init"
            )

    def _fill(
        self,
        name: str,
        description: layout.Description,
        initial: layout.NodeState,
        rules: list[layout.Rule],
        text: bytes,
    ) -> None:
        """Writes all regions, the header last. The caller holds the lock."""
        header = self._header
        offset, kind = layout.REGIONS["json"]
        if len(text) > sizeof(kind):
            raise StateError(f"the description has {len(text)} bytes, but only {sizeof(kind)} fit")
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
        self.discard_events()
        self._wake()

    def _insert(self, state: layout.NodeState, rule: layout.Rule) -> int:
        """Stores a rule in a free slot, or in the slot of a spent rule."""
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
        raise StateError(f"there are {layout.MAX_RULES} rules; remove one first")


def _overwrite(target: Any, source: Any) -> None:
    memmove(addressof(target), addressof(source), sizeof(source))
