# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi mig: what can be made, what there is, making and destroying."""

from collections.abc import Mapping

import pytest
from nvdra_sim import incidents
from nvdra_sim.state_file import state
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode

ON = {"mode": True}


def h100(sim_node: MakeNode, *modes: Mapping[str, object]) -> SimulatedNode:
    gpus = [{"index": place, "mig": mig} for place, mig in enumerate(modes)]
    return sim_node("dgx-h100", overrides={"gpu_count": len(modes), "gpus": gpus})


def mig(node: SimulatedNode, *arguments: str) -> str:
    done = node.run(node.smi, "mig", *arguments)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def refused(node: SimulatedNode, *arguments: str) -> tuple[int, list[str]]:
    done = node.run(node.smi, "mig", *arguments)
    return done.returncode, done.stdout.splitlines()


def cells(text: str) -> list[list[str]]:
    """The rows of a table below its headings, without rules."""
    lines = text.splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    start = next(place for place, line in enumerate(lines) if line.startswith("|="))
    return [
        line.strip("|").split() for line in lines[start + 1 :] if not line.startswith(("|-", "+-"))
    ]


def test_instances_are_made_listed_and_destroyed(sim_node: MakeNode) -> None:
    node = h100(sim_node, ON)
    assert mig(node, "-cgi", "9:4,MIG 1g.10gb+me", "-C").splitlines() == [
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile "
        "MIG 3g.40gb (ID  2)",
        "Successfully created GPU instance ID  7 on GPU  0 using profile MIG 1g.10gb+me (ID 20)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  7 using profile "
        "MIG 1g.10gb+me (ID  0)",
    ]
    mig(node, "-cgi", "1g.10gb:1")
    assert cells(mig(node, "-lgi")) == [
        ["0", "MIG", "1g.10gb", "19", "8", "1:1"],
        ["0", "MIG", "3g.40gb", "9", "2", "4:4"],
        ["0", "MIG", "1g.10gb+me", "20", "7", "0:1"],
    ]
    assert cells(mig(node, "-lci")) == [
        ["0", "2", "MIG", "3g.40gb", "2", "0", "0:3"],
        ["0", "7", "MIG", "1g.10gb+me", "0", "0", "0:1"],
    ]
    assert node.run(node.smi, "-L").stdout.count("  MIG ") == 2
    assert mig(node, "-dci", "-gi", "2").splitlines() == [
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  2"
    ]
    assert mig(node, "-dgi", "-gi", "2,8").splitlines() == [
        "Successfully destroyed GPU instance ID  8 from GPU  0",
        "Successfully destroyed GPU instance ID  2 from GPU  0",
    ]
    assert cells(mig(node, "-lgi")) == [["0", "MIG", "1g.10gb+me", "20", "7", "0:1"]]


def test_a_gpu_instance_is_cut_by_compute_instances(sim_node: MakeNode) -> None:
    node = h100(sim_node, ON)
    mig(node, "-cgi", "3g.40gb,3g.40gb")
    assert [row[:6] for row in cells(mig(node, "-lcip", "-gi", "1"))[::2]] == [
        ["0", "1", "MIG", "1c.3g.40gb", "0", "3/3"],
        ["0", "1", "MIG", "2c.3g.40gb", "1", "1/1"],
        ["0", "1", "MIG", "3g.40gb", "2*", "1/1"],
    ]
    mig(node, "-cci", "1c.3g.40gb,0", "-gi", "1")
    mig(node, "-cci", "-gi", "2")
    assert cells(mig(node, "-lci")) == [
        ["0", "1", "MIG", "1c.3g.40gb", "0", "0", "0:1"],
        ["0", "1", "MIG", "1c.3g.40gb", "0", "1", "1:1"],
        ["0", "2", "MIG", "3g.40gb", "2", "0", "0:3"],
    ]
    mig(node, "-dci", "-gi", "1", "-ci", "1")
    assert [row[1:6] for row in cells(mig(node, "-lci"))] == [
        ["1", "MIG", "1c.3g.40gb", "0", "0"],
        ["2", "MIG", "3g.40gb", "2", "0"],
    ]


def test_profiles_and_placements_are_those_of_each_gpu_that_supports_mig(
    sim_node: MakeNode,
) -> None:
    node = h100(sim_node, {}, ON)
    mig(node, "-i", "1", "-cgi", "9")
    rows = cells(mig(node, "-lgip"))
    free = {(row[0], row[2]): row[4] for row in rows[::2]}
    assert len(free) == 14
    assert (free["0", "3g.40gb"], free["1", "3g.40gb"]) == ("2/2", "1/2")
    assert ["0", "MIG", "7g.80gb", "0", "1/1", "79.25", "No", "132", "7", "0"] in rows
    placements = mig(node, "-lgipp", "-i", "0").splitlines()
    assert "GPU  0 Profile ID  9 Placements: {0,4}:4" in placements
    assert "GPU  0 Profile ID  0 Placement : {0}:8" in placements
    assert len(placements) == 7


def test_what_cannot_be_is_refused_with_the_codes_of_the_driver(sim_node: MakeNode) -> None:
    node = h100(sim_node, ON)
    assert refused(node, "-lgi") == (6, ["No GPU instances found: Not Found"])
    assert refused(node, "-dci") == (6, ["No compute instances found: Not Found"])
    mig(node, "-cgi", "3g.40gb:4", "-C")
    assert refused(node, "-cgi", "9:4") == (
        255,
        [
            "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient resources",
            "Failed to create GPU instances: Insufficient resources",
        ],
    )
    assert refused(node, "-dgi")[1][-1] == (
        "Failed to destroy GPU instances: In use by another client"
    )
    mig(node, "-cgi", "19")
    file = state.load(node.state)
    incidents.add_process(file, file.gpu("0"), 4711, 1, "compute", incidents.InstanceRef(2, 0))
    code, lines = refused(node, "-dci", "-gi", "2")
    assert (code, lines[-1]) == (
        255,
        "Failed to destroy compute instances: In use by another client",
    )


def test_a_gpu_without_mig_or_with_the_mode_off_is_none(
    shared_node: MakeNode, sim_node: MakeNode
) -> None:
    assert refused(shared_node("t4"), "-lgip") == (6, ["No MIG-supported devices found."])
    assert refused(h100(sim_node, {}), "-lgi") == (6, ["No MIG-enabled devices found."])


@pytest.mark.parametrize(
    "arguments", [["-cgi"], ["-cgi", "nope"], ["-cgi", "9", "-lgi"], ["-x"], ["-cci", "7c.7g"]]
)
def test_a_wrong_command_line_exits_with_2(sim_node: MakeNode, arguments: list[str]) -> None:
    node = h100(sim_node, ON)
    mig(node, "-cgi", "19")
    code, lines = refused(node, *arguments)
    assert code == 2
    assert lines[-2] == "Please run 'nvidia-smi -h' for help."


def test_help_describes_the_options(shared_node: MakeNode) -> None:
    assert "--create-gpu-instance" in mig(shared_node("t4"), "-h")
