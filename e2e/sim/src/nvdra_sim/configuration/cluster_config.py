# SPDX-License-Identifier: Apache-2.0
"""Expand a cluster file into one node file per node (docs/reference/nvml-simulator.md §12)."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from nvdra_sim.configuration import file_reader, node_config
from nvdra_sim.configuration.file_schema import API_VERSION, ClusterFile, ClusterNodeEntry
from nvdra_sim.description import NodeDescription
from nvdra_sim.errors import ConfigError, Problem, duplicates


def load(source: file_reader.Source) -> tuple[NodeDescription, ...]:
    """Describes all nodes of a `kind: Cluster` file, in order. Raises like `node_config.load`."""
    return tuple(node_config.load(node) for node in expand(source))


def expand(source: file_reader.Source) -> tuple[dict[str, Any], ...]:
    """The node files of a cluster file, as mappings in order. Raises `ConfigError`.

    All nodes of a rack get its fabric cluster UUID (by default, version 5 from cluster and rack)
    and its chassis serial. Each gets its own tray number.
    """
    cluster = file_reader.read(ClusterFile, source)
    racks = {rack.name: rack for rack in cluster.racks}
    problems = [
        Problem(f"nodes.{position}.rack", f"no rack is named {node.rack!r}")
        for position, node in enumerate(cluster.nodes)
        if node.rack is not None and node.rack not in racks
    ]
    names = [node.name for node in cluster.nodes]
    problems += duplicates("nodes.{}.name", names, range(len(names)))
    ConfigError.raise_for(problems)
    trays: dict[str, int] = {}
    return tuple(_node_file(cluster, node, trays) for node in cluster.nodes)


def _node_file(
    cluster: ClusterFile, node: ClusterNodeEntry, trays: dict[str, int]
) -> dict[str, Any]:
    file: dict[str, Any] = {
        **cluster.defaults,
        "apiVersion": API_VERSION,
        "kind": "Node",
        "metadata": {"name": node.name},
    }
    if node.profile is not None:
        file["profile"] = node.profile
    overrides = {**file.get("overrides", {}), **node.overrides}
    fabric = dict(file.get("fabric", {}))
    if node.rack is not None:
        given = next(rack.cluster_uuid for rack in cluster.racks if rack.name == node.rack)
        rack_uuid = given or uuid5(NAMESPACE_DNS, f"{cluster.metadata.name}/{node.rack}")
        tray = trays.get(node.rack, 0)
        trays[node.rack] = tray + 1
        serial = f"{rack_uuid.int % 10**13:013d}"
        fabric["cluster_uuid"] = str(rack_uuid)
        overrides.setdefault("platform", {"chassis_serial": serial, "slot": tray + 1, "tray": tray})
    if node.clique is not None:
        fabric["clique"] = node.clique
    return {**file, "overrides": overrides, "fabric": fabric}
