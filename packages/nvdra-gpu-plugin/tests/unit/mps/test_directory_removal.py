# SPDX-License-Identifier: Apache-2.0
"""Directories are removed whatever is in them, by passes of bounded work."""

import os
from pathlib import Path

import pytest
from nvdra_gpu_plugin.mps import directory_removal
from nvdra_testing.node import directories

LAST = "stop"
DEEP = 3_000
WIDE = 2_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "daemon"
    (found / "pipe").mkdir(parents=True)
    (found / LAST).touch()
    return found


def passes(directory: Path, max_entries: int) -> int:
    """How many it takes."""
    count = 1
    while not directory_removal.remove(directory, LAST, max_entries):
        assert (directory / LAST).exists()
        count += 1
    assert not directory.exists()
    return count


def test_depth_takes_no_recursion(directory: Path) -> None:
    directories.nest(directory / "pipe", DEEP)
    assert passes(directory, directory_removal.MAX_ENTRIES)


def test_a_pass_ends_after_its_entries_and_the_next_one_goes_on(directory: Path) -> None:
    directories.nest(directory / "pipe", DEEP)
    (directory / "pipe/wide").mkdir()
    for number in range(WIDE):
        (directory / "pipe/wide" / str(number)).touch()
    assert passes(directory, 100) >= (DEEP + WIDE) // 100


def test_what_links_lead_to_stays(directory: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    for name in ("a", "pipe/b"):
        (directory / name).symlink_to(kept)
    os.mkfifo(directory / "pipe/fifo")
    os.link(kept / "file", directory / "pipe/hard")
    assert passes(directory, 3) > 1
    assert (kept / "file").exists()


def test_names_of_directories_that_are_moved_up_collide_with_none(directory: Path) -> None:
    inner = directory / "pipe/moved-1"
    (inner / "x").mkdir(parents=True)
    (directory / f"moved-{(inner / 'x').stat().st_ino}").touch()
    assert passes(directory, 100)


def test_one_that_is_gone_is_removed(tmp_path: Path) -> None:
    assert directory_removal.remove(tmp_path / "none", LAST)


@pytest.mark.skipif(os.geteuid() != 0, reason="an attribute is set")
def test_what_cannot_be_removed_is_an_error_that_names_it(directory: Path) -> None:
    (directory / LAST).unlink()
    (directory / LAST).mkdir()
    with pytest.raises(OSError, match=LAST):
        directory_removal.remove(directory, LAST)
