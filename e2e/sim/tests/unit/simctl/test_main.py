# SPDX-License-Identifier: Apache-2.0
"""`nvdra-simctl` as people and scripts use it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_sim.__about__ import __version__
from nvdra_sim.simctl import main
from nvdra_sim.state_file import state
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode
from nvdra_sim.testing.nvml_fixtures import NvmlOn

Simctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simctl(capsys: pytest.CaptureFixture[str]) -> Simctl:
    """Runs one command: its exit code, its output, its complaint."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def answer(simctl: Simctl) -> Callable[..., Any]:
    """Runs one command with --json; its answer as data."""

    def run(*arguments: str | Path) -> Any:
        code, out, err = simctl(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_init_makes_a_node_that_show_shows(answer: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "deep/down/node.bin"
    made = answer("init", "--profile", "t4", "--name", "lab-3", "--state", file)
    assert made == {"state": str(file), "node": "lab-3", "profile": "t4", "gpus": 4}
    shown = answer("show", "--state", file)
    assert (shown["node"], shown["driver"], len(shown["gpus"])) == ("lab-3", "580.95.05", 4)
    assert shown["gpus"][1] == {
        "gpu": 1,
        "uuid": state.load(file).description().gpus[1].uuid,
        "name": "Tesla T4",
        "bus_id": "0000:86:00.0",
        "minor": 1,
        "driver": "nvidia",
        "lost": False,
        "unplugged": False,
        "drained": False,
        "initialisation_ms": 0,
        "persistence_mode": False,
        "compute_mode": "default",
        "computing": False,
        "time_slice": 0,
        "mig_mode": False,
        "mig_pending": False,
        "recovery_action": "none",
        "row_remapping": "none",
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "fabric_state": 0,
        "fabric_clique": 0,
    }


def test_init_takes_a_node_file(answer: Callable[..., Any], tmp_path: Path) -> None:
    node = {
        "apiVersion": "nvdra.sim/v1",
        "kind": "Node",
        "metadata": {"name": "x"},
        "profile": "a30",
    }
    file = tmp_path / "node.yaml"
    file.write_text(json.dumps(node))
    made = answer("init", "--config", file, "--state", tmp_path / "node.bin")
    assert (made["node"], made["gpus"]) == ("x", 2)


def test_the_state_file_may_come_from_the_environment(
    nvml_on: NvmlOn, answer: Callable[..., Any]
) -> None:
    nvml_on("t4")
    assert answer("show")["profile"] == "t4"


@pytest.mark.parametrize("by", ["place", "uuid", "bus id"])
def test_a_gpu_is_lost_and_found_by_whatever_names_it(
    nvml_on: NvmlOn, answer: Callable[..., Any], by: str
) -> None:
    gpu = nvml_on("t4").gpu("2")
    name = {"place": "2", "uuid": gpu.uuid, "bus id": gpu.bus_id.upper()}[by]
    handle = pynvml.nvmlDeviceGetHandleByIndex(2)
    assert answer("gpu", "lose", name)["lost"] is True
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(handle)
    assert answer("gpu", "restore", name)["lost"] is False
    assert pynvml.nvmlDeviceGetName(handle) == "Tesla T4"


def test_a_fault_is_added_listed_and_removed(nvml_on: NvmlOn, answer: Callable[..., Any]) -> None:
    nvml_on("t4")
    added = answer(
        *("fault", "add", "nvmlDeviceGetName", "--result", "in_use", "--gpu", "1", "--times", "5")
    )
    assert added == {
        "id": 1,
        "function": "nvmlDeviceGetName",
        "gpu": 1,
        "result": "IN_USE",
        "activation_status": None,
        "after_calls": 0,
        "probability": 1.0,
        "do_work": False,
        "abort": False,
        "delay_ms": 0,
        "times": 5,
        "hits": 0,
        "spent": False,
    }
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1))
    assert answer("fault", "list") == [{**added, "hits": 1}]
    assert answer("fault", "rm", "1") == []


def test_all_faults_go_at_once(nvml_on: NvmlOn, answer: Callable[..., Any]) -> None:
    node = nvml_on("t4")
    answer("slow", "5")
    answer("fault", "add", "nvmlInit*", "--delay-ms", "-1")
    assert [rule["delay_ms"] for rule in answer("fault", "list")] == [5, "until removed"]
    assert answer("fault", "rm", "all") == []
    assert node.snapshot().rule_count == 0


def test_slow_is_a_rule_for_every_function(nvml_on: NvmlOn, answer: Callable[..., Any]) -> None:
    nvml_on("t4")
    rule = answer("slow", "200", "--gpu", "3")
    assert (rule["function"], rule["gpu"], rule["delay_ms"], rule["result"]) == (
        "nvml*",
        3,
        200,
        None,
    )


def test_reboot_tells_the_simulated_proc(
    nvml_on: NvmlOn, answer: Callable[..., Any], tmp_path: Path
) -> None:
    node = nvml_on("t4")
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("before\n")
    file.chmod(0o444)
    boot_id = answer("reboot", "--proc-root", tmp_path / "proc")["boot_id"]
    assert file.read_text() == f"{boot_id}\n"
    assert file.stat().st_mode & 0o777 == 0o444
    assert node.snapshot().boot_id.decode() == boot_id


def test_counters_count_and_start_anew(nvml_on: NvmlOn, answer: Callable[..., Any]) -> None:
    nvml_on("t4")
    pynvml.nvmlDeviceGetCount()
    counted = answer("counters", "--reset")
    assert counted == [
        {"function": "nvmlDeviceGetCount_v2", "calls": 1, "errors": 0},
        {"function": "nvmlInitWithFlags", "calls": 1, "errors": 0},
    ]
    assert answer("counters") == []


def test_install_makes_a_node_and_uninstall_removes_it(
    answer: Callable[..., Any], simctl: Simctl, tmp_path: Path
) -> None:
    root = tmp_path / "node"
    made = answer("install", "--profile", "t4", "--nodes", "table", "--root", root)
    assert made["driver_root"] == str(root / "driver")
    assert Path(made["environment"]["NVDRA_SIM_STATE"]).is_file()
    assert (root / "sys/bus/pci/devices/0000:3b:00.0/vendor").read_text() == "0x10de\n"
    assert answer("show", "--state", made["environment"]["NVDRA_SIM_STATE"])["node"] == "node-0"
    assert simctl("uninstall", root / "driver")[0] == 0
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_people_get_tables(nvml_on: NvmlOn, simctl: Simctl) -> None:
    nvml_on("t4")
    lines = simctl("show")[1].splitlines()
    assert lines[0] == "node           node-0"
    heads = next(line for line in lines if line.lstrip().startswith("gpu "))
    assert heads.split()[:4] == ["gpu", "uuid", "name", "bus_id"]
    assert sum("Tesla T4" in line for line in lines) == 4
    assert simctl("fault", "list")[1] == "none\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gpu", "lose", "9"), "the node has no GPU '9'"),
        (
            ("fault", "add", "nvmlInit"),
            "a rule requires --result, --activation-status, --delay-ms or --abort",
        ),
        (("fault", "add", "nvmlFoo", "--result", "3"), "no NVML function matches 'nvmlFoo'"),
        (("fault", "rm", "4"), "there is no rule 4"),
        (("show", "--state", "/nowhere"), "no state file at /nowhere"),
        (("init", "--config", "/nowhere"), "No such file or directory"),
        (("init", "--config", "/dev/null", "--name", "x"), "cannot be used with --config"),
        (("init", "--config", "/dev/null", "--state", "/nowhere/x"), "not a mapping"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(
    nvml_on: NvmlOn, simctl: Simctl, arguments: tuple[str, ...], complaint: str
) -> None:
    nvml_on("t4")
    code, out, err = simctl(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("nvdra-simctl: ")
    assert complaint in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "required: COMMAND"),
        (("init",), "one of the arguments --config --profile is required"),
        (("init", "--profile", "dgx-h9000"), "invalid choice: 'dgx-h9000'"),
        (("fault", "add", "x", "--result", "BLA"), "'BLA' is not an NVML return code"),
        (("fault", "add", "x", "--result", "SUCCESS"), "a rule cannot make a call succeed"),
        (("slow", "soon"), "'soon' is not a number of milliseconds"),
        (("slow", "-5"), "a delay is 0 or more milliseconds, or -1"),
        (("slow", "5", "--times", "0"), "'0' is not a positive number"),
        (("fault", "rm", "some"), "'some' is neither the id of a rule nor all"),
    ],
)
def test_wrong_usage_is_explained(
    simctl: Simctl, arguments: tuple[str, ...], complaint: str
) -> None:
    code, out, err = simctl(*arguments)
    assert (code, out) == (2, "")
    assert complaint in err


COMMANDS = [
    (),
    ("init",),
    ("install",),
    ("uninstall",),
    ("show",),
    ("reboot",),
    ("counters",),
    ("gpu",),
    ("gpu", "lose"),
    ("gpu", "restore"),
    ("fault",),
    ("fault", "add"),
    ("fault", "list"),
    ("fault", "rm"),
    ("slow",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does(simctl: Simctl, command: tuple[str, ...]) -> None:
    code, out, _ = simctl(*command, "--help")
    description = out.split("\n\n")[1]
    assert code == 0
    assert description[0].isupper()
    assert description.rstrip().endswith(".")


# Disturbances


@dataclass(frozen=True)
class Commanded:
    """An installed node, and commands on it."""

    node: SimulatedNode
    answer: Callable[..., Any]

    def __call__(self, *arguments: str | Path) -> Any:
        return self.answer(*arguments, "--state", self.node.state)


@pytest.fixture
def simulated(sim_node: MakeNode, answer: Callable[..., Any]) -> Commanded:
    """A node with two H100, one of them cut in two."""
    cut = [
        {"profile": "3g.40gb", "start": 4, "compute": ["2c", "1c"]},
        {"profile": "2g.20gb", "start": 0, "compute": ["2c"]},
    ]
    gpus = [{"index": 0, "mig": {"mode": True, "instances": cut}}]
    node = sim_node("dgx-h100", overrides={"gpu_count": 2, "gpus": gpus})

    return Commanded(node, answer)


def test_events_are_shown_with_what_they_concern(simulated: Commanded) -> None:
    assert simulated("time", "freeze")["frozen"] is True
    told = simulated("xid", "1", "48")
    assert (told["gpu"], told["type"], told["data"], told["gpu_instance"]) == (1, "xid", 48, None)
    simulated("xid", "0", "13", "--gi", "2", "--ci", "1")
    assert simulated("ecc", "1", "dbe", "2")["ecc_uncorrected"] == 2
    assert simulated("gpu", "lose", "1", "--xid", "79")["lost"] is True
    events = simulated("events")
    assert [(one["type"], one["data"]) for one in events] == [
        ("xid", 48),
        ("xid", 154),  # the GPU needs a recovery now
        ("xid", 13),
        ("dbe", 0),
        ("dbe", 0),
        ("xid", 79),
    ]
    assert (events[2]["gpu_instance"], events[2]["compute_instance"]) == (2, 1)
    assert len({one["time"] for one in events}) == 1
    stepped = simulated("time", "step", "1000")["time"]
    assert stepped > events[0]["time"]
    assert simulated("time", "run")["frozen"] is False


def test_a_compute_instance_needs_its_gpu_instance(nvml_on: NvmlOn, simctl: Simctl) -> None:
    nvml_on("t4")
    code, _, complaint = simctl("xid", "0", "13", "--ci", "1")
    assert (code, complaint) == (1, "nvdra-simctl: --ci requires --gi\n")


def test_mig_devices_are_listed(simulated: Commanded) -> None:
    rows = simulated("mig", "list")
    assert [
        (row["gpu"], row["gpu_instance"], row["compute_instance"], row["profile"], row["slices"])
        for row in rows
    ] == [(0, 2, 0, "3g.40gb", 2), (0, 2, 1, "3g.40gb", 1), (0, 3, 0, "2g.20gb", 2)]
    assert all(row["uuid"].startswith("MIG-") for row in rows)


def test_gpu_instances_are_listed_with_compute_instances_or_without(simulated: Commanded) -> None:
    simulated("mig", "destroy", "0", "--gi", "3", "--ci", "0")
    rows = simulated("mig", "list", "--instances")
    assert [
        (row["gpu"], row["gpu_instance"], row["profile"], row["start"], row["compute_instances"])
        for row in rows
    ] == [(0, 2, "3g.40gb", 4, 2), (0, 3, "2g.20gb", 0, 0)]


def test_processes_come_and_go(simulated: Commanded) -> None:
    simulated("proc", "add", "0", "4711", "512", "--gi", "3", "--ci", "0")
    assert simulated("proc", "list") == [
        {
            "gpu": 0,
            "pid": 4711,
            "kind": "compute",
            "memory_mib": 512,
            "gpu_instance": 3,
            "compute_instance": 0,
        }
    ]
    assert simulated("proc", "rm", "0", "4711") == []


def test_the_fabric_of_all_boards_is_changed_at_once(simulated: Commanded) -> None:
    rows = simulated("fabric", "all", "--fabric-state", "in_progress", "--clique", "7")
    assert [(row["fabric_state"], row["fabric_clique"]) for row in rows] == [(2, 7), (2, 7)]
    assert [row["fabric_clique"] for row in simulated("fabric", "1", "--clique", "8")] == [8]


def test_an_unplugged_gpu_leaves_sysfs_and_comes_back(simulated: Commanded) -> None:
    roots, gpu = simulated.node.roots, simulated.node.description.gpus[1]
    device = roots.sys / "bus/pci/devices" / gpu.bus_id
    before = sorted(path.relative_to(roots.sys) for path in roots.sys.rglob("*"))
    assert simulated("gpu", "unplug", "1", "--sys-root", roots.sys)["unplugged"] is True
    assert not device.exists()
    assert not device.is_symlink()
    assert (roots.sys / "bus/pci/devices" / simulated.node.description.gpus[0].bus_id).exists()
    assert simulated("gpu", "plug", "1", "--sys-root", roots.sys)["unplugged"] is False
    assert sorted(path.relative_to(roots.sys) for path in roots.sys.rglob("*")) == before


@pytest.mark.parametrize("is_blocked", [True, False])
def test_persistence_mode_keeps_a_gpu_from_being_reset_or_does_not(
    sim_node: MakeNode, simctl: Simctl, is_blocked: bool
) -> None:
    node = sim_node("a30", node={"persistence_blocks_reset": is_blocked})
    reset = ("gpu", "reset", "0", "--state", node.state)
    with state.load(node.state).transaction() as now:
        now.gpus[0].persistence = 1
    code, _, said = simctl(*reset)
    assert (code != 0) == is_blocked
    assert ("GPU 0000:" in said and "In use by another client" in said) == is_blocked
    with state.load(node.state).transaction() as now:
        now.gpus[0].persistence = 0
    assert simctl(*reset)[0] == 0


@pytest.mark.parametrize("command", [["reboot"], ["gpu", "reset", "0"]])
def test_access_files_go_with_their_instances(simulated: Commanded, command: list[str]) -> None:
    roots = simulated.node.roots
    instances = roots.proc / "driver/nvidia/capabilities/gpu0/mig"
    assert (instances / "gi2/ci1/access").exists()
    simulated(*command, "--proc-root", roots.proc)
    assert not instances.exists()
    assert (roots.proc / "driver/nvidia/capabilities/mig/config").exists()
    assert simulated("mig", "list") == []


def test_the_driver_goes_and_comes(simulated: Commanded) -> None:
    assert simulated("driver", "unload")["driver_loaded"] is False
    assert simulated("driver", "load")["driver_loaded"] is True


def test_a_fault_can_do_all_that_a_rule_can(simulated: Commanded) -> None:
    effect = ("--after-calls", "3", "--probability", "0.5", "--do-work", "--result", "TIMEOUT")
    rule = simulated("fault", "add", "nvmlDeviceGetName", *effect)
    assert (rule["after_calls"], rule["probability"], rule["do_work"]) == (3, 0.5, True)
    assert simulated("fault", "add", "nvmlInit*", "--abort")["abort"] is True


@pytest.mark.parametrize(
    ("flag", "value"), [("--probability", "1.5"), ("--probability", "x"), ("--after-calls", "-1")]
)
def test_a_wrong_number_is_refused_as_wrong_usage(
    nvml_on: NvmlOn, simctl: Simctl, flag: str, value: str
) -> None:
    nvml_on("t4")
    code, _, complaint = simctl("fault", "add", "nvmlInit*", "--result", "UNKNOWN", flag, value)
    assert code == 2
    assert flag in complaint


def test_uninstalling_where_nothing_was_installed_is_refused(
    simctl: Simctl, tmp_path: Path
) -> None:
    code, out, complaint = simctl("uninstall", tmp_path)
    assert (code, out) == (1, "")
    assert complaint == f"nvdra-simctl: this tool has not installed anything at {tmp_path}\n"


def test_the_version_is_told(simctl: Simctl) -> None:
    assert simctl("--version") == (0, f"nvdra-simctl {__version__}\n", "")
    assert __version__ != "0.0.0"


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"], ["--help"]])
def test_an_answer_that_cannot_be_written_is_one_line(
    nvml_on: NvmlOn, arguments: list[str]
) -> None:
    nvml_on("dgx-h100")
    program = "import sys; from nvdra_sim.simctl import main; sys.exit(main.main())"
    command = [sys.executable, "-E", "-c", program]  # buffered, whoever runs the tests
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*command, *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"nvdra-simctl: cannot write the output: No space left on device\n"
