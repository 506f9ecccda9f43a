# SPDX-License-Identifier: Apache-2.0
"""How GPUs are shared: `nvidia-smi -c` and `nvidia-smi compute-policy`.

Source: docs/reference/nvml-simulator.md §15; docs/reference/gpu-prepare.md, "Time-slicing".
"""

import subprocess
import sys
from pathlib import Path

import pytest
from nvdra_sim import incidents
from nvdra_sim.state_file import state
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode


@pytest.fixture
def node(sim_node: MakeNode) -> SimulatedNode:
    """Two GPUs in persistence mode, which keeps settings when no process uses them."""
    made = sim_node("dgx-h100", overrides={"gpu_count": 2})
    with state.load(made.state).transaction() as now:
        for gpu in now.gpus:
            gpu.persistence = 1
    return made


def uuid(node: SimulatedNode, index: int) -> str:
    return node.description.gpus[index].uuid


def modes(node: SimulatedNode) -> list[int]:
    return [gpu.compute_mode for gpu in state.load(node.state).snapshot().gpus[:2]]


def time_slices(node: SimulatedNode) -> list[int]:
    return [gpu.time_slice for gpu in state.load(node.state).snapshot().gpus[:2]]


@pytest.mark.parametrize(
    ("mode", "number", "name"),
    [
        ("EXCLUSIVE_PROCESS", 3, "EXCLUSIVE_PROCESS"),
        ("3", 3, "EXCLUSIVE_PROCESS"),
        ("PROHIBITED", 2, "PROHIBITED"),
        ("2", 2, "PROHIBITED"),
    ],
)
def test_a_compute_mode_is_set_and_put_back(
    node: SimulatedNode, mode: str, number: int, name: str
) -> None:
    done = node.run(node.smi, "-i", uuid(node, 1), "-c", mode)
    assert (done.returncode, done.stdout.splitlines()) == (
        0, [f"Set compute mode to {name} for GPU 00000000:64:00.0.", "All done."],
    )  # fmt: skip
    assert modes(node) == [0, number]
    query = node.run(node.smi, "--query-gpu=compute_mode", "--format=csv,noheader")
    assert query.stdout.splitlines()[0] == "Default"
    assert query.stdout.splitlines()[1] != "Default"
    for words in ("Set compute mode to", "Compute mode is already set to"):
        done = node.run(node.smi, "-i", uuid(node, 1), "--compute-mode=DEFAULT")
        assert done.stdout.startswith(f"{words} DEFAULT for GPU 00000000:64:00.0.")
    assert modes(node) == [0, 0]


@pytest.mark.parametrize("mode", ["EXCLUSIVE", "4", "", "1x"])
def test_an_unknown_compute_mode_is_a_bad_argument(node: SimulatedNode, mode: str) -> None:
    assert node.run(node.smi, "-i", "0", "-c", mode).returncode == 2


def test_a_gpu_in_mig_mode_has_no_compute_mode(node: SimulatedNode) -> None:
    node.run(node.smi, "-i", "0", "-mig", "1")
    done = node.run(node.smi, "-c", "EXCLUSIVE_PROCESS")
    assert (done.returncode, modes(node)) == (3, [0, 0])
    assert done.stdout.startswith("Unable to set the compute mode to EXCLUSIVE_PROCESS")


def test_a_time_slice_is_set_per_gpu_and_outlives_the_program(node: SimulatedNode) -> None:
    set_slice = ("compute-policy", "-i", uuid(node, 1), "--set-timeslice")
    for number, name in enumerate(("Default", "Short", "Medium", "Long")):
        done = node.run(node.smi, *set_slice, str(number))
        assert (done.returncode, done.stdout.splitlines()) == (
            0, [f"Set time slice to {name} for GPU 00000000:64:00.0.", "All done."],
        )  # fmt: skip
        assert time_slices(node) == [0, number]
    listed = node.run(node.smi, "compute-policy", "--list")
    assert [line.split()[1:4] for line in listed.stdout.splitlines()[3:5]] == [
        ["0", "00000000:53:00.0", "Default"],
        ["1", "00000000:64:00.0", "Long"],
    ]
    assert node.run(node.smi, "compute-policy", "--set-timeslice=1").returncode == 0
    assert time_slices(node) == [1, 1]


def test_modes_and_time_slices_go_with_a_reboot(node: SimulatedNode) -> None:
    node.run(node.smi, "-c", "PROHIBITED")
    node.run(node.smi, "compute-policy", "--set-timeslice", "3")
    assert (modes(node), time_slices(node)) == ([2, 2], [3, 3])
    incidents.reboot(state.load(node.state))
    assert (modes(node), time_slices(node)) == ([0, 0], [0, 0])


def test_without_persistence_mode_they_go_with_the_last_client(sim_node: MakeNode) -> None:
    node = sim_node("dgx-h100", overrides={"gpu_count": 1})
    node.run(node.smi, "-c", "PROHIBITED")
    node.run(node.smi, "compute-policy", "--set-timeslice", "3")
    assert "Long" not in node.run(node.smi, "compute-policy", "-l").stdout
    assert (modes(node)[0], time_slices(node)[0]) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set-timeslice", "4"),
        ("--set-timeslice", "-1"),
        ("--set-timeslice", "long"),
        ("--set-timeslice",),
        ("--timeslice", "1"),
    ],
)
def test_an_unknown_time_slice_is_a_bad_argument(
    node: SimulatedNode, arguments: tuple[str, ...]
) -> None:
    done = node.run(node.smi, "compute-policy", "-i", "0", *arguments)
    assert (done.returncode, time_slices(node)) == (2, [0, 0])


def test_the_help_of_compute_policy_is_its_own(node: SimulatedNode) -> None:
    for arguments in ((), ("-h",), ("--help",)):
        done = node.run(node.smi, "compute-policy", *arguments)
        assert done.returncode == 0
        assert "--set-timeslice" in done.stdout


@pytest.mark.parametrize(
    "arguments", [("-c", "DEFAULT"), ("compute-policy", "--set-timeslice", "1")]
)
def test_both_take_privilege(sim_node: MakeNode, arguments: tuple[str, ...]) -> None:
    node = sim_node("dgx-h100", node={"privilege": "euid"}, overrides={"gpu_count": 1})
    nobody = ("unshare", "--map-user=65534")
    assert node.run(*nobody, str(node.smi), *arguments).returncode == 4
    assert node.run(node.smi, *arguments).returncode == 0


@pytest.mark.parametrize("gpu", ["GPU-00000000-0000-0000-0000-000000000000", "7"])
def test_a_gpu_that_is_not_there_is_told(node: SimulatedNode, gpu: str) -> None:
    assert node.run(node.smi, "-i", gpu, "-c", "DEFAULT").returncode == 6
    done = node.run(node.smi, "compute-policy", "-i", gpu, "--set-timeslice", "1")
    assert done.returncode == 6


def test_a_rule_makes_a_command_of_nvidia_smi_fail(node: SimulatedNode) -> None:
    simctl(node, "fault", "add", "smi:compute-policy", "--result", "NOT_SUPPORTED", "--times", "1")
    command = (node.smi, "compute-policy", "--set-timeslice", "1")
    assert node.run(node.smi, "-c", "DEFAULT").returncode == 0
    assert [node.run(*command).returncode for _ in range(2)] == [3, 0]


def test_a_rule_makes_a_command_of_nvidia_smi_hang(node: SimulatedNode) -> None:
    simctl(node, "fault", "add", "smi:compute-*", "--delay-ms", "-1")
    with subprocess.Popen(
        [node.smi, "-c", "PROHIBITED"], env=node.environment, stdout=subprocess.DEVNULL
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        assert modes(node) == [0, 0]
        simctl(node, "fault", "rm", "all")
        assert process.wait(timeout=10) == 0
    assert modes(node) == [2, 2]


def simctl(node: SimulatedNode, *command: str) -> None:
    program = Path(sys.executable).with_name("nvdra-simctl")
    subprocess.run([program, *command, f"--state={node.state}"], check=True, capture_output=True)
