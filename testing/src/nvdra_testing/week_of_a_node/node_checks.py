# SPDX-License-Identifier: Apache-2.0
"""Compares a node's records, CDI specs and slices with its pods and with its hardware."""

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import CDIError
from nvdra_lab.layout import LabDir, MachineDir

from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.week_of_a_node import verdict
from nvdra_testing.week_of_a_node.history import History, PodHistory
from nvdra_testing.week_of_a_node.pods import FOLDER
from nvdra_testing.week_of_a_node.verdict import Sight

STATE = "/var/lib/kubelet/plugins/gpu.nvidia.com/state.sqlite"
SPECS = "k8s.gpu.nvidia.com-*"
SETTLED_S = 5.0
"""A pod that has run for so long is settled: the kubelet's and the plugin's calls are over."""


@dataclass(frozen=True)
class Node:
    """A node of the lab, with its files as this machine sees them."""

    cluster: Cluster
    name: str

    @property
    def files(self) -> MachineDir:
        return LabDir(self.cluster.lab.folder).machine(self.name)

    def records(self) -> list[Any]:
        """The prepared claims in the plugin's state file."""
        uri = f"file:{self.files.on_host(STATE)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            return [json.loads(row[0]) for row in connection.execute("SELECT payload FROM records")]

    def tombstones(self) -> list[Any]:
        """What is left of claims that have ended."""
        uri = f"file:{self.files.on_host(STATE)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            try:
                rows = connection.execute("SELECT payload FROM started_records").fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):  # no claim has changed anything
                    raise
                return []
        return [json.loads(row[0]) for row in rows]

    def specs(self) -> list[str]:
        """The names of the plugin's CDI specs."""
        return sorted(path.name for path in self._cdi.glob(SPECS))

    def resolved(self, names: list[str]) -> dict[str, tuple[int, int]] | None:
        """The device nodes that the runtime makes for CDI names; None if it does not know them."""
        try:
            edits = Cache([str(self._cdi)]).resolve(names)
        except CDIError:
            return None
        return {node.path: (node.major or 0, node.minor or 0) for node in edits.device_nodes}

    def device_numbers(self) -> dict[str, tuple[int, int]]:
        """Major and minor numbers of the driver's device nodes in this boot."""
        script = "stat -c '%n %t %T' /dev/nvidia* 2> /dev/null || true"
        lines = self.cluster.exec_on_node(self.name, "sh", "-c", script).splitlines()
        rows = (line.split() for line in lines)
        return {name: (int(major, 16), int(minor, 16)) for name, major, minor in rows}

    def uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs that the hardware has."""
        shown = self.cluster.simctl(self.name, "show", "--json")
        return frozenset(re.findall(r"GPU-[0-9a-f-]{36}", shown))

    def sights(self) -> list[Sight]:
        """What the pods of this node have written."""
        journal = self.files.on_host(f"{FOLDER}/journal")
        if not journal.exists():
            return []
        rows = (line.split() for line in journal.read_text(errors="replace").splitlines())
        return [
            Sight(self.name, row[1], row[2], tuple(row[3:]), float(row[0]))
            for row in rows
            if len(row) > 2
        ]

    def remove_sights(self) -> None:
        """Remove locks and journal of an earlier week."""
        folder = Path(self.files.on_host(f"{FOLDER}/journal")).parent
        for path in folder.glob("*") if folder.exists() else ():
            path.unlink()

    @property
    def _cdi(self) -> Path:
        return self.files.run / "cdi"


@dataclass(frozen=True)
class Findings:
    """What is wrong on a node."""

    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()


def check(node: Node, namespace: str, history: History, forced: Sequence[PodHistory]) -> Findings:
    """Compare the records and CDI specs of a node that is well with the pods that run on it.

    Args:
        node: The node.
        namespace: That of the pods.
        history: What the claims had.
        forced: The pods that were deleted by force: the kubelet may have kept their devices.
    """
    before = _settled(history, node.name)
    records, numbers = node.records(), node.device_numbers()
    settled = {pod.name: pod for pod in _settled(history, node.name)}
    pods = [pod for pod in before if pod.name in settled]
    known = {each["name"]: each for each in records if each["namespace"] == namespace}
    with history.lock:
        kept = {pod.name: verdict.kept_gpus(pod, forced, history) for pod in pods}
    lost = [
        problem
        for pod in pods
        for problem in _missing(node, pod, known, history, kept[pod.name], numbers)
    ]
    return Findings(lost=tuple(lost), doubled=tuple(_held_twice(node.name, records)))


def check_empty(node: Node, history: History) -> Findings:
    """What is left on a node although it has no pods with claims any more."""
    wrong = [f"{node.name}: the record of {each['name']}" for each in node.records()]
    wrong += [f"{node.name}: what {each['name']} has left" for each in node.tombstones()]
    wrong += [
        f"{node.name}: MIG device {each['uuid']}" for each in node.cluster.mig_list(node.name)
    ]
    specs = node.specs()
    if len(specs) != 1:
        wrong.append(f"{node.name}: the CDI specs {', '.join(specs) or 'are gone'}")
    offered = history.offered[node.name][-1][1]
    published = {history.uuids[node.name, device] for device in offered}
    if published != node.uuids():
        wrong.append(f"{node.name}: slices have {sorted(published)}, hardware other GPUs")
    return Findings(left_over=tuple(wrong))


def _settled(history: History, node: str) -> list[PodHistory]:
    with history.lock:
        now = time.monotonic()
        return [
            pod
            for pod in history.running()
            if pod.node == node and pod.deleted is None and now - pod.runs[-1].began > SETTLED_S
        ]


def _missing(
    node: Node,
    pod: PodHistory,
    records: dict[str, Any],
    history: History,
    kept: set[frozenset[str]],
    numbers: dict[str, tuple[int, int]],
) -> list[str]:
    wrong = []
    for claim in pod.claims.values():
        where = f"claim {claim} of pod {pod.name}, which runs on {node.name},"
        if claim not in records:
            wrong.append(f"{where} has no record")
            continue
        devices = records[claim]["devices"]
        with history.lock:
            wanted = {
                history.uuids[each.node, each.device]
                for each in history.allocations[claim]
                if each.ended is None
            }
        recorded = frozenset(each.get("parent_uuid") or each["uuid"] for each in devices)
        if recorded != wanted and recorded not in kept:
            wrong.append(f"{where} is recorded with {devices}, and has {sorted(wanted)}")
        found = node.resolved([each["cdi_id"] for each in devices])
        if found is None:
            wrong.append(f"{where} has CDI names that no spec defines")
            continue
        other = {
            path: number
            for path, number in found.items()
            if path.startswith("/dev/nvidia") and numbers.get(path, number) != number
        }
        if other:
            wrong.append(f"{where} gets device nodes of another boot: {other}")
    return wrong


def _held_twice(node: str, records: list[Any]) -> list[str]:
    holders: dict[str, list[str]] = {}
    divided: dict[str, list[str]] = {}
    for record in records:
        for device in record["devices"]:
            if not device["is_admin"]:
                holders.setdefault(device["uuid"], []).append(record["name"])
                divided.setdefault(device.get("parent_uuid", ""), []).append(record["name"])
    for uuid in (holders.keys() & divided.keys()) - {""}:
        holders[uuid] += divided[uuid]
    return [
        f"{node}: {uuid} is recorded for the claims {', '.join(names)}"
        for uuid, names in holders.items()
        if len(names) > 1
    ]
