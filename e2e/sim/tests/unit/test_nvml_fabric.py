# SPDX-License-Identifier: Apache-2.0
"""What NVML says of the NVLink fabric, platform by platform, and how that changes (§9)."""

import ctypes
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.configuration import cluster_config
from nvdra_sim.configuration.file_schema import API_VERSION
from nvdra_sim.state_file import state
from nvdra_sim.testing.imex_fixtures import wait_until
from nvdra_sim.testing.nvml_fixtures import NvmlOn

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
NIL = UUID(int=0)
RACK = UUID("6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672")
LONG_MS, SHORT_MS = 3_600_000, 400


def fabric(index: int = 0) -> tuple[int, int, UUID, int, int, int]:
    """State, status, cluster, clique, health mask and summary, as the newest of pynvml has them."""
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    cluster = UUID(bytes=bytes(info.clusterUuid))
    return info.state, info.status, cluster, info.cliqueId, info.healthMask, info.healthSummary


# Platforms


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("t4", (NOT_SUPPORTED, 0, NIL, 0, 0, 0)),
        ("l40s", (NOT_SUPPORTED, 0, NIL, 0, 0, 0)),
        ("dgx-a100", (NOT_SUPPORTED, 0, NIL, 0, 0, 0)),
        ("dgx-h100", (COMPLETED, 0, NIL, 0, 0, 0)),
        ("hgx-h200", (COMPLETED, 0, NIL, 0, 0, 0)),
        ("b200", (COMPLETED, 0, NIL, 0, 0x80, 1)),
        ("gb200-nvl72", (COMPLETED, 0, RACK, 2, 0xAA, 1)),
        ("gb300-nvl72", (COMPLETED, 0, RACK, 2, 0x1AA, 1)),
    ],
)
def test_every_board_of_a_platform_says_the_same_of_its_fabric(
    nvml_on: NvmlOn, profile: str, expected: tuple[object, ...]
) -> None:
    node = nvml_on(profile).description()
    assert {fabric(gpu.index) for gpu in node.gpus} == {expected}


def test_the_cluster_is_told_in_the_order_of_its_bytes(nvml_on: NvmlOn) -> None:
    nvml_on("gb200-nvl72")
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    assert bytes(info.clusterUuid)[:4] == bytes.fromhex("6f1c7a52")


def test_trays_of_one_rack_have_one_cluster_and_the_cliques_of_the_cluster_file(
    nvml_on: NvmlOn,
) -> None:
    file = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": "lab"},
        "defaults": {"profile": "gb300-nvl72"},
        "racks": [{"name": "r0", "cluster_uuid": str(RACK)}, {"name": "r1"}],
        "nodes": [
            {"name": "a", "rack": "r0", "clique": 1},
            {"name": "b", "rack": "r0", "clique": 32766},
            {"name": "c", "rack": "r1", "clique": 1},
        ],
    }
    told = []
    for node in cluster_config.expand(file):
        nvml_on(node["profile"], fabric=node["fabric"], overrides=node["overrides"])
        told.append(fabric()[2:4])
    assert [clique for _, clique in told] == [1, 32766, 1]
    assert told[0][0] == told[1][0] == RACK
    assert told[2][0] not in (RACK, NIL)


def test_boards_of_one_node_may_disagree(nvml_on: NvmlOn) -> None:
    other = UUID(int=7)
    gpus = [
        {"index": 1, "fabric": {"clique": 9}},
        {"index": 2, "fabric": {"cluster_uuid": str(other)}},
        {"index": 3, "fabric": {"state": "in_progress", "status": 999}},
    ]
    nvml_on("gb200-nvl72", overrides={"gpus": gpus})
    told = [fabric(index)[:4] for index in range(4)]
    assert told == [
        (COMPLETED, 0, RACK, 2),
        (COMPLETED, 0, RACK, 9),
        (COMPLETED, 0, other, 2),
        (IN_PROGRESS, 999, RACK, 2),
    ]


# Shapes


@pytest.mark.parametrize(("version", "code"), [(0, 25), (1, 25), (2, 0), (3, 0), (4, 25)])
def test_versions_2_and_3_are_answered_and_no_other(
    nvml_on: NvmlOn, version: int, code: int
) -> None:
    nvml_on("gb200-nvl72")
    kind = pynvml.c_nvmlGpuFabricInfo_v2_t if version == 2 else pynvml.c_nvmlGpuFabricInfo_v3_t
    info: Any = kind()
    info.version = ctypes.sizeof(kind) | version << 24
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info)) == code


def test_the_fourth_shape_has_one_clique_of_type_0_once_the_fabric_is_up(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72")

    def cliques() -> list[tuple[int, int]]:
        info = pynvml.c_nvmlGpuFabricInfo_v4_t()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetGpuFabricInfo_v4(handle, ctypes.byref(info))
        return [(one.type, one.id) for one in info.cliques[: info.numCliques]]

    assert cliques() == [(0, 2)]
    incidents.set_fabric(node, node.description().gpus, fabric_state="in_progress")
    assert cliques() == []


# Changes


def test_health_flips_while_programs_run_and_the_place_in_the_fabric_stays(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("gb200-nvl72")
    incidents.set_fabric(node, [node.description().gpus[1]], health=0xA6, summary=2)
    assert fabric(1) == (COMPLETED, 0, RACK, 2, 0xA6, 2)
    assert fabric(0) == (COMPLETED, 0, RACK, 2, 0xAA, 1)


def test_a_board_registers_again_after_a_fault(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72")
    gpu = node.description().gpus[0]
    incidents.set_fabric(node, [gpu], fabric_state="completed", status=999)
    assert fabric()[:2] == (COMPLETED, 999)
    incidents.set_fabric(node, [gpu], fabric_state="not_started", status=0)
    assert fabric()[:2] == (NOT_STARTED, 0)
    incidents.set_fabric(node, [gpu], fabric_state="completed", clique=3)
    assert fabric()[:4] == (COMPLETED, 0, RACK, 3)


def test_a_reboot_undoes_what_was_changed(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72")
    incidents.set_fabric(node, node.description().gpus, fabric_state="in_progress", clique=9)
    incidents.reboot(node)
    assert fabric() == (COMPLETED, 0, RACK, 2, 0xAA, 1)


# Coming up


def test_a_fabric_that_comes_up_has_no_cluster_before_it_is_up(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72", fabric={"bring_up_ms": LONG_MS})
    assert fabric() == (NOT_STARTED, 0, NIL, 0, 0xAA, 1)
    with node.transaction() as now:
        now.gpus[0].fabric_since_ns -= LONG_MS * 600_000
    assert fabric() == (IN_PROGRESS, 0, NIL, 0, 0xAA, 1)
    assert fabric(1)[0] == NOT_STARTED
    with node.transaction() as now:
        now.gpus[0].fabric_since_ns -= LONG_MS * 400_000
    assert fabric() == (COMPLETED, 0, RACK, 2, 0xAA, 1)


def test_a_fabric_comes_up_by_itself(nvml_on: NvmlOn) -> None:
    nvml_on("gb200-nvl72", fabric={"bring_up_ms": SHORT_MS})
    wait_until(lambda: fabric()[0] == COMPLETED, lambda: str(fabric()))
    assert fabric()[2:4] == (RACK, 2)


@pytest.mark.parametrize("again", ["reboot", "load", "reset"])
def test_a_fabric_comes_up_again_after_a(
    nvml_on: NvmlOn, again: str, request: pytest.FixtureRequest
) -> None:
    node = nvml_on("gb200-nvl72", fabric={"bring_up_ms": LONG_MS})
    with node.transaction() as now:
        now.gpus[0].fabric_since_ns -= LONG_MS * 1_000_000
    assert fabric()[0] == COMPLETED
    happens: dict[str, Callable[[state.State], object]] = {
        "reboot": incidents.reboot,
        "load": incidents.load_driver,
        "reset": lambda node: incidents.reset(node, node.description().gpus[0]),
    }
    happens[again](node)
    assert fabric() == (NOT_STARTED, 0, NIL, 0, 0xAA, 1)


def test_a_machines_own_boot_brings_the_fabric_up_anew(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72", fabric={"bring_up_ms": LONG_MS})
    with node.transaction() as now:
        now.boot_id = b"of an earlier boot"
        now.gpus[0].fabric_since_ns -= LONG_MS * 1_000_000
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert fabric() == (NOT_STARTED, 0, NIL, 0, 0xAA, 1)


def test_what_the_control_tool_says_of_the_fabric_is_what_nvml_says(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72", fabric={"bring_up_ms": LONG_MS})
    gpu = node.description().gpus[0]
    for passed_ms in (0, LONG_MS * 6 // 10, LONG_MS * 4 // 10):
        with node.transaction() as now:
            now.gpus[0].fabric_since_ns -= passed_ms * 1_000_000
        assert incidents.fabric_state(node, gpu) == fabric()[0]


def test_a_state_set_by_hand_ends_the_coming_up(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72", fabric={"bring_up_ms": LONG_MS})
    incidents.set_fabric(node, node.description().gpus, fabric_state="completed")
    assert fabric()[:4] == (COMPLETED, 0, RACK, 2)


def test_a_platform_without_fabric_never_comes_up(nvml_on: NvmlOn) -> None:
    nvml_on("t4", fabric={"bring_up_ms": LONG_MS})
    assert fabric()[0] == NOT_SUPPORTED
