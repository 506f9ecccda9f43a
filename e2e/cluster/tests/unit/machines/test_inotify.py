# SPDX-License-Identifier: Apache-2.0
"""The limits of inotify, on a tree with a /proc/sys of its own."""

import re
from pathlib import Path

import pytest
from nvdra_lab.errors import LabError
from nvdra_lab.machines import inotify, kernel
from nvdra_lab.machines.inotify import INSTANCES, WATCHES

READ_ONLY = Path("/proc/sys/kernel/ngroups_max")
"""A number that the kernel lets nobody change, not even root: 65536."""


def machine(tmp_path: Path, instances: int, watches: int = 200_000) -> Path:
    """A /proc with two limits and a process of root that has one instance and two watches."""
    for limit, value in ((INSTANCES, instances), (WATCHES, watches)):
        path = tmp_path / "sys" / limit.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    for folder in ("fd", "fdinfo"):
        (tmp_path / "7" / folder).mkdir(parents=True)
    (tmp_path / "7/fd/3").symlink_to("anon_inode:inotify")
    (tmp_path / "7/fd/4").symlink_to("/dev/null")
    (tmp_path / "7/fdinfo/3").write_text("pos:\t0\nflags:\t0\ninotify wd:2\ninotify wd:1\n")
    return tmp_path


def limits(proc: Path) -> list[int]:
    return [int((proc / "sys" / limit.path).read_text()) for limit in inotify.LIMITS]


@pytest.mark.parametrize("nodes", [2, 18, 72])
def test_too_few_instances_are_raised_so_that_the_next_check_passes(
    tmp_path: Path, nodes: int
) -> None:
    proc = machine(tmp_path, instances=16)
    inotify.check(nodes, proc)
    assert limits(proc) == [16, 200_000], "a check changes nothing"
    inotify.raise_limits(nodes, proc)
    instances, watches = limits(proc)
    assert instances >= 1 + 16 + 10 * nodes + 256
    assert watches == 200_000
    inotify.raise_limits(nodes, proc)
    assert limits(proc) == [instances, watches]


def test_what_runs_already_counts(tmp_path: Path) -> None:
    proc = machine(tmp_path, instances=16 + 10 * 2, watches=1 + 64 + 512 * 2)
    inotify.raise_limits(2, proc)
    instances, watches = limits(proc)
    assert instances == 1 + 16 + 10 * 2 + 256
    assert watches == 2 + 64 + 512 * 2 + 8192


def test_there_is_room_for_labs_that_start_at_the_same_time(tmp_path: Path) -> None:
    """Debian's 128 are enough for one lab of two nodes, and not for four that count at once."""
    proc = machine(tmp_path, instances=128)
    inotify.raise_limits(2, proc)
    assert limits(proc)[0] >= 4 * (16 + 10 * 2)


def test_enough_is_left_alone(tmp_path: Path) -> None:
    proc = machine(tmp_path, instances=8192)
    inotify.raise_limits(18, proc)
    assert limits(proc) == [8192, 200_000]


def test_a_limit_that_cannot_be_changed_is_named_with_the_value_to_set(tmp_path: Path) -> None:
    proc, nodes = machine(tmp_path, instances=0), 10_000
    path = proc / "sys" / INSTANCES.path
    path.unlink()
    path.symlink_to(READ_ONLY)
    inotify.check(18, proc)  # 65536 are enough
    with pytest.raises(LabError, match="max_user_instances") as refused:
        inotify.check(nodes, proc)
    needed = 1 + 16 + 10 * nodes
    assert f"to be {needed} or more" in str(refused.value)
    assert re.search(rf"sysctl -w fs\.inotify\.max_user_instances={needed + 256}\b", str(refused))


def test_a_limit_that_was_raised_is_set_back_with_the_last_lab() -> None:
    assert {limit.path for limit in inotify.LIMITS} <= kernel.settings().keys()


def test_a_kernel_without_inotify_has_nothing_to_raise(tmp_path: Path) -> None:
    inotify.check(18, tmp_path)
    inotify.raise_limits(18, tmp_path)
