"""A lab whose tool was killed is taken down whole, wherever the kill hit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import labtool
import pytest
from labtool import LAB, Lab

pytestmark = pytest.mark.timeout(900)  # the first start on a machine builds the programs

KILLED = Lab("killed")
LOOK_S = 0.001
PATIENCE_S = 600.0
"""The first start on a machine builds the programs."""


def noted() -> int:
    """How many machines have been started and noted."""
    return len(list(KILLED.folder.glob("machines/*/pid")))


def is_starting(tool: int) -> bool:
    """Whether a machine is being started; it goes no further, as on a slow machine."""
    found = KILLED.machines(labtool.children(tool))
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return bool(found)


def is_serving() -> bool:
    """Whether the API server has begun to write its log."""
    return (KILLED.folder / "machines/control-plane/log/kube-apiserver.log").exists()


def has_nodes() -> bool:
    """Whether a kubelet has been started: hardware, containerd and its images are there."""
    return (KILLED.folder / "machines/node-1/log/kubelet.log").exists()


Moment = Callable[[int], bool]
"""Whether it has come, by the process id of the tool."""

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
    before = labtool.look()
    kill("up", "--nodes", "1", when=MOMENTS[moment])
    KILLED.must("down")
    assert_nothing_is_left(before)


def test_a_start_that_was_killed_is_no_lab_and_the_next_says_what_to_do() -> None:
    before = labtool.look()
    kill("up", "--nodes", "1", when=lambda _: noted() == 2)
    again = KILLED.run("up", "--nodes", "1")
    assert again.returncode == 1
    assert "take it down: lab down" in again.stderr
    KILLED.must("down")
    assert_nothing_is_left(before)


def test_a_lab_whose_taking_down_was_killed_is_taken_down_by_the_next() -> None:
    before = labtool.look()
    KILLED.must("up", "--nodes", "1")
    kill("down", when=lambda _: not KILLED.machines(labtool.processes()))
    KILLED.must("down")
    assert_nothing_is_left(before)
    assert "is not up" in KILLED.run("down").stderr


def kill(*command: str, when: Moment) -> None:
    """Run `lab COMMAND` and kill it as soon as that is so."""
    argv = [str(LAB), command[0], "--name", KILLED.name, *command[1:]]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not when(process.pid):
            assert process.poll() is None, f"lab {command[0]} ended before it was killed"
            assert time.monotonic() < deadline, f"lab {command[0]} did not come so far"
            time.sleep(LOOK_S)
        process.kill()


def assert_nothing_is_left(before: labtool.Host) -> None:
    assert labtool.look().added_since(before) == {}
    assert KILLED.traces() == []
    assert not KILLED.folder.exists()
