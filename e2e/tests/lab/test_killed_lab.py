# SPDX-License-Identifier: Apache-2.0
"""A lab whose `lab` process was killed can be taken down completely."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from nvdra_testing.cluster import lab_command
from nvdra_testing.cluster.lab_command import LAB_PROGRAM, Lab

pytestmark = pytest.mark.timeout(900)  # the first start on a machine builds the programs

KILLED = Lab("killed")
LOOK_S = 0.001
PATIENCE_S = 600.0
"""The first start on a machine builds the programs."""
ENDS_S = 120.0
"""A kubectl of the killed `lab` ends by itself, once it is sure that the API server is gone."""


def noted() -> int:
    """The number of machines that have been started and recorded."""
    return len(list(KILLED.folder.glob("machines/*/pid")))


def is_starting(tool: int) -> bool:
    """Whether a machine is being started; it is stopped there, as on a slow machine."""
    found = KILLED.init_processes(lab_command.children(tool))
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return bool(found)


def is_serving() -> bool:
    """Whether the API server has begun to write its log."""
    return (KILLED.folder / "machines/control-plane/log/kube-apiserver.log").exists()


def has_nodes() -> bool:
    """Whether a kubelet was started, after hardware, containerd and images."""
    return (KILLED.folder / "machines/node-1/log/kubelet.log").exists()


Moment = Callable[[int], bool]
"""Whether the moment has come, by the process id of `lab`."""

MOMENTS: dict[str, Moment] = {
    "folder": lambda _: KILLED.folder.exists(),
    "network": lambda _: (KILLED.folder / "net").exists(),
    "first machine": is_starting,
    "first machine noted": lambda _: noted() >= 1,
    "all machines": lambda _: noted() == 2,
    "API server": lambda _: is_serving(),
    "kubelet": lambda _: has_nodes(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_start_that_was_killed_leaves_nothing_once_the_lab_is_taken_down(moment: str) -> None:
    before = lab_command.host_snapshot()
    kill("up", "--nodes", "1", when=MOMENTS[moment])
    KILLED.run_checked("down")
    assert_nothing_is_left(before)


def test_a_start_that_was_killed_is_no_lab_and_the_next_says_what_to_do() -> None:
    before = lab_command.host_snapshot()
    kill("up", "--nodes", "1", when=lambda _: noted() == 2)
    again = KILLED.run("up", "--nodes", "1")
    assert again.returncode == 1
    assert "take it down: lab down" in again.stderr
    KILLED.run_checked("down")
    assert_nothing_is_left(before)


def test_a_lab_whose_taking_down_was_killed_is_taken_down_by_the_next() -> None:
    before = lab_command.host_snapshot()
    KILLED.run_checked("up", "--nodes", "1")
    kill("down", when=lambda _: not KILLED.init_processes(lab_command.processes()))
    KILLED.run_checked("down")
    assert_nothing_is_left(before)
    assert "is not up" in KILLED.run("down").stderr


def kill(*command: str, when: Moment) -> None:
    """Run `lab COMMAND`, and kill it at that moment."""
    argv = [str(LAB_PROGRAM), command[0], "--name", KILLED.name, *command[1:]]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not when(process.pid):
            assert process.poll() is None, f"lab {command[0]} ended before it was killed"
            assert time.monotonic() < deadline, f"lab {command[0]} did not come so far"
            time.sleep(LOOK_S)
        process.kill()


def assert_nothing_is_left(before: lab_command.HostSnapshot) -> None:
    assert lab_command.host_snapshot().added_since(before) == {}
    deadline = time.monotonic() + ENDS_S
    while (left := KILLED.leftovers()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    assert left == []
    assert not KILLED.folder.exists()
