# SPDX-License-Identifier: Apache-2.0
"""What the API says, as tables that look as kubectl's do. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from nvdra_testing.cluster.installation import Device
from rich.table import Table

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA = "resource.kubernetes.io/numaNode"


def listing(*columns: str) -> Table:
    """An empty table."""
    return Table(*columns, box=None, header_style="dim", pad_edge=False)


def nodes(known: Iterable[Mapping[str, Any]]) -> Table:
    """The nodes of a `kubectl get nodes -o json`."""
    table = listing("NAME", "STATUS", "VERSION", "ADDRESS", "RUNTIME")
    for node in known:
        status = node["status"]
        info = status["nodeInfo"]
        table.add_row(
            node["metadata"]["name"],
            "Ready" if _conditions(status).get("Ready") == "True" else "NotReady",
            info["kubeletVersion"],
            status["addresses"][0]["address"],
            info["containerRuntimeVersion"].partition("+")[0],
        )
    return table


def pods(known: Iterable[Mapping[str, Any]]) -> Table:
    """The pods of a `kubectl get pods -o json`, less those that are on their way out."""
    table = listing("NAME", "READY", "STATUS", "NODE")
    for pod in known:
        if "deletionTimestamp" in pod["metadata"]:
            continue
        containers = pod["status"].get("containerStatuses", [])
        ready = sum(container["ready"] for container in containers)
        table.add_row(
            pod["metadata"]["name"],
            f"{ready}/{len(pod['spec']['containers'])}",
            pod["status"]["phase"],
            pod["spec"].get("nodeName", "-"),
        )
    return table


def devices(known: Sequence[Device]) -> Table:
    """The published devices, in the order of nodes and names; a node is named once."""
    table = listing("NODE", "DEVICE", "PRODUCT", "MEMORY", "PCIE ROOT", "NUMA", "ARCHITECTURE")
    for _, of_node in groupby(known, lambda device: device.node):
        for index, device in enumerate(of_node):
            facts = device.attributes
            table.add_row(
                device.node if index == 0 else "",
                device.name,
                facts["productName"],
                device.capacity["memory"],
                facts.get(PCIE_ROOT, "-"),
                str(facts.get(NUMA, "-")),
                facts["architecture"],
            )
    return table


def _conditions(status: Mapping[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status.get("conditions", [])}
