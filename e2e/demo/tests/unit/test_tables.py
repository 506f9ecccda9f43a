# SPDX-License-Identifier: Apache-2.0
"""What the demo makes of what the API, the driver and the lab say."""

import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvdra_testing.cluster.installation import Device
from rich.console import Console, RenderableType

from e2e.demo import claim_trace, next_steps, quickstarts, tables
from e2e.demo.claim_trace import Moments
from e2e.demo.quickstarts import Quickstart

README = Path(__file__).parents[4] / "README.md"
NUMBERS = {"twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16}


def lines(table: RenderableType) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=100).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def gpu(
    node: str,
    minor: int,
    *,
    product: str = "NVIDIA H100 80GB HBM3",
    root: str | None = "pci0000:52",
) -> Device:
    attributes = {
        "productName": product,
        "architecture": "Hopper",
        "pcieBusID": f"0000:{minor:02x}:00.0",
        tables.NUMA: 0,
    }
    if root:
        attributes[tables.PCIE_ROOT] = root
    return Device(node, f"gpu-{minor}", attributes, {"memory": "81559Mi"})


def test_the_devices_of_a_node_stand_below_its_name() -> None:
    shown = lines(tables.devices([gpu("node-1", 0), gpu("node-1", 1, root=None), gpu("node-2", 0)]))
    assert [" ".join(line.split()) for line in shown] == [
        "NODE DEVICE PRODUCT MEMORY PCIE ROOT NUMA ARCHITECTURE",
        "node-1 gpu-0 NVIDIA H100 80GB HBM3 81559Mi pci0000:52 0 Hopper",
        "gpu-1 NVIDIA H100 80GB HBM3 81559Mi - 0 Hopper",
        "node-2 gpu-0 NVIDIA H100 80GB HBM3 81559Mi pci0000:52 0 Hopper",
    ]


def test_a_node_is_ready_when_its_condition_says_so() -> None:
    def node(name: str, ready: str) -> dict[str, object]:
        status = {
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "InternalIP", "address": "10.95.0.11"}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3",
                "containerRuntimeVersion": "containerd://2.1.9+unknown",
            },
        }
        return {"metadata": {"name": name}, "status": status}

    shown = lines(tables.nodes([node("node-1", "True"), node("node-2", "Unknown")]))
    assert [line.split() for line in shown[1:]] == [
        ["node-1", "Ready", "v1.36.3", "10.95.0.11", "containerd://2.1.9"],
        ["node-2", "NotReady", "v1.36.3", "10.95.0.11", "containerd://2.1.9"],
    ]


def test_pods_that_are_being_deleted_are_not_shown() -> None:
    spec = {"nodeName": "node-1", "containers": [{"name": "gpus"}]}
    status = {"phase": "Running", "containerStatuses": [{"ready": True}]}
    old = {"metadata": {"name": "old", "deletionTimestamp": "…"}, "spec": spec, "status": status}
    new = {"metadata": {"name": "new"}, "spec": spec, "status": status}
    shown = lines(tables.pods([old, new]))
    assert [line.split() for line in shown[1:]] == [["new", "1/1", "Running", "node-1"]]


def test_a_quickstart_is_told_by_its_first_line_and_its_pods() -> None:
    claim, pod = "kind: ResourceClaim\nmetadata: {name: c}", "kind: Pod\nmetadata: {name: a}"
    text = f"# Two pods.\n{claim}\n---\n{pod}\n"
    assert quickstarts.parse("1-two.yaml", text) == Quickstart("1-two.yaml", "Two pods.", ("a",))


def test_every_quickstart_fits_a_line_and_has_pods() -> None:
    for file in sorted(quickstarts.FOLDER.glob("*.yaml")):
        quickstart = quickstarts.parse(file.name, file.read_text())
        assert quickstart.pods
        assert 10 < len(quickstart.title) <= 97


def test_the_readme_says_how_many_quickstarts_the_demo_shows() -> None:
    shown = {file.name for file in quickstarts.FOLDER.glob("*.yaml")} - {*quickstarts.NOT_TOLD}
    (said,) = re.findall(r"\b(\w+) quickstarts\. It shows", README.read_text())
    assert NUMBERS[said] == len(shown)


NEW = (1, 36)


def test_on_neighbours_of_a_chosen_product_only_the_gpu_that_nobody_has_stays_pending() -> None:
    assert quickstarts.pending_quickstarts([gpu("node-1", 0), gpu("node-1", 1)], NEW) == {"6"}


def test_on_other_products_the_chosen_one_stays_pending_too() -> None:
    others = [gpu("node-1", minor, product="NVIDIA L40S") for minor in range(2)]
    assert quickstarts.pending_quickstarts(others, NEW) == {"4", "6"}


def test_gpus_of_two_nodes_or_without_a_root_are_no_neighbours() -> None:
    assert quickstarts.pending_quickstarts([gpu("node-1", 0), gpu("node-2", 0)], NEW) == {"5", "6"}
    lonely = [gpu("node-1", minor, root=None) for minor in range(2)]
    assert quickstarts.pending_quickstarts(lonely, NEW) == {"5", "6"}


def test_before_1_34_nobody_serves_the_classic_resource_name() -> None:
    neighbours = [gpu("node-1", 0), gpu("node-1", 1)]
    assert quickstarts.pending_quickstarts(neighbours, (1, 33)) == {"6", "7"}


def test_the_gpu_to_lose_is_the_first_that_no_claim_holds() -> None:
    devices = [gpu(node, minor) for node in ("node-1", "node-2") for minor in range(2)]
    taken = [("node-1", "gpu-0"), ("node-1", "gpu-1"), ("node-2", "gpu-0")]
    assert next_steps.next_allocated(devices, taken) == gpu("node-2", 1)
    assert next_steps.next_allocated(devices, [*taken, ("node-2", "gpu-1")]) is None


def test_a_line_of_the_trace_that_is_too_long_is_parted_before_its_attributes() -> None:
    text = "fetch claim  |██|  3.4 ms\nprepare      |██|  5.9 ms  attempt=1 devices=gpu-2"
    assert claim_trace.fit_width(text, 40).splitlines() == [
        "fetch claim  |██|  3.4 ms",
        "prepare      |██|  5.9 ms",
        "attempt=1 devices=gpu-2".rjust(40),
    ]
    assert claim_trace.fit_width(text, 80) == text


def test_moments_are_told_as_exactly_as_they_are_known() -> None:
    created = datetime(2026, 3, 1, 12, 0, 59, tzinfo=UTC)
    moments = Moments(
        created=created,
        prepared=created + timedelta(milliseconds=410),
        running=created + timedelta(seconds=1),
        first_line=created + timedelta(milliseconds=1053),
    )
    shown = [
        line.split("  ")[0:1] + line.split()[1:3] for line in lines(claim_trace.table(moments))
    ]
    assert shown[1:] == [
        ["12:00:59", "≈", "0"],
        ["12:00:59.410", "0.410", "s"],
        ["12:01:00", "≈", "1"],
        ["12:01:00.053", "1.053", "s"],
    ]
