# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvdra_lab.kubernetes import node_objects
from nvdra_lab.machines import init, machine_spec, mounts, status

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
40 27 0:30 / /mnt/a\040b\134c rw master:3 - cgroup2 cgroup2 rw
"""


def run(folder: Path, *steps: machine_spec.Step) -> status.MachineStatus:
    """Carry out steps that end in a failure, and give what was reported."""
    (folder / "log").mkdir()
    plan = machine_spec.Machine("m", {"PATH": os.defpath}, steps)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(init.StepError):
            init.Init(plan, descriptor).run()
    finally:
        os.close(descriptor)
    return status.decode((folder / "status.json").read_text())


def test_a_step_that_fails_is_named_with_how_it_ended(tmp_path: Path) -> None:
    seen = run(tmp_path, machine_spec.Run("hardware", ("sh", "-c", "echo no such board; exit 3")))
    assert (seen.phase, seen.step, seen.reason) == ("failed", "hardware", "ended with 3")
    assert (tmp_path / "log/hardware.log").read_text() == "no such board\n"


def test_a_unit_that_dies_while_it_is_waited_for_is_named_at_once(tmp_path: Path) -> None:
    seen = run(
        tmp_path,
        machine_spec.Start("etcd", ("sh", "-c", "kill -9 $$")),
        machine_spec.WaitSocket("etcd", str(tmp_path / "socket"), 60),
    )
    assert (seen.phase, seen.step) == ("failed", "etcd")
    assert seen.reason == "was killed by signal 9"
    assert seen.units["etcd"].exits == 1


def test_a_unit_that_mounts_nothing_is_given_up_on(tmp_path: Path) -> None:
    seen = run(
        tmp_path,
        machine_spec.WaitMount("init", "/proc", 60),
        machine_spec.Start("sysfs", ("sleep", "5")),
        machine_spec.WaitMount("sysfs", str(tmp_path), 0.1),
    )
    os.kill(seen.units["sysfs"].pid, 9)
    os.waitpid(seen.units["sysfs"].pid, 0)
    assert (seen.phase, seen.step) == ("failed", "sysfs")


def test_a_unit_that_never_answers_is_given_up_on(tmp_path: Path) -> None:
    seen = run(
        tmp_path,
        machine_spec.Start("etcd", ("sleep", "5")),
        machine_spec.WaitSocket("etcd", str(tmp_path / "socket"), 0.1),
    )
    os.kill(seen.units["etcd"].pid, 9)
    os.waitpid(seen.units["etcd"].pid, 0)
    assert seen.reason == "did not answer within 0 s"


def test_a_program_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    seen = run(tmp_path, machine_spec.Start("etcd", ("/no/such/etcd",)))
    assert seen.reason == "/no/such/etcd does not start: No such file or directory"


def test_an_ended_unit_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    count = tmp_path / "count"
    script = f"echo again >> {count}; [ $(wc -l < {count}) -ge 2 ] && exec sleep 60"
    plan = machine_spec.Machine(
        "m", {"PATH": os.defpath}, (machine_spec.Start("unit", ("sh", "-c", script)),)
    )
    (tmp_path / "plan.json").write_text(machine_spec.encode(plan))
    program = (
        "import os, pathlib, sys; from nvdra_lab.machines import init, machine_spec; "
        "root = pathlib.Path(sys.argv[1]); folder = os.open(root, os.O_RDONLY); "
        "init.Init(machine_spec.decode((root / 'plan.json').read_text()), folder).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path])
    try:
        while True:
            seen = _status(tmp_path)
            if seen.units and seen.units["unit"].exits == 1 and seen.units["unit"].pid:
                break
            assert process.poll() is None
        assert seen.phase == "running"
        assert seen.units["unit"].last_exit == "ended with 1"
        os.kill(seen.units["unit"].pid, 9)
    finally:
        process.kill()
        process.wait()


def _status(folder: Path) -> status.MachineStatus:
    try:
        return status.decode((folder / "status.json").read_text())
    except FileNotFoundError:
        return status.MachineStatus()


def test_mounts_are_read_with_their_kind_and_unescaped() -> None:
    assert mounts.parse(MOUNTINFO.strip()) == [
        mounts.Mount("/proc", "proc"),
        mounts.Mount("/sys/fs/cgroup/cpu", "cgroup"),
        mounts.Mount("/mnt/a b\\c", "cgroup2"),
    ]


def node(conditions: list[dict[str, str]], taints: list[dict[str, str]]) -> node_objects.NodeFacts:
    item = {
        "metadata": {"name": "n"},
        "spec": {"taints": taints},
        "status": {
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "10.95.0.11"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
        },
    }
    (facts,) = node_objects.facts({"items": [item]})
    return facts


READY = {"type": "Ready", "status": "True"}


def test_a_ready_node_without_taints_takes_pods() -> None:
    assert node([READY], []) == node_objects.NodeFacts("n", True, "", "10.95.0.11", "v1.36.3")


def test_a_ready_node_that_is_still_tainted_does_not() -> None:
    facts = node([READY], [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    assert (facts.is_ready, facts.reason) == (False, "tainted node.kubernetes.io/not-ready")


def test_a_node_that_is_not_ready_says_why() -> None:
    facts = node([{"type": "Ready", "status": "False", "message": "no network"}], [])
    assert (facts.is_ready, facts.reason) == (False, "no network")


def test_a_node_that_has_said_nothing_is_not_ready() -> None:
    assert not node([], []).is_ready
