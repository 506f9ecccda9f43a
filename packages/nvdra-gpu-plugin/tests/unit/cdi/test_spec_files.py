"""The directory of CDI specs: what nobody stands on goes, what somebody may need stays."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles

NOW = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def make(path: Path, age: timedelta) -> None:
    path.touch()
    changed = (NOW - age).timestamp()
    os.utime(path, (changed, changed))


def left(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_generations_that_nobody_stands_on_are_removed(tmp_path: Path) -> None:
    for generation in ("old", "held", "current"):
        make(tmp_path / f"k8s.gpu.nvidia.com-device_{generation}.yaml", timedelta(days=1))
    make(tmp_path / "nvidia.com-gpu.yaml", timedelta(days=1))
    files = SpecFiles(tmp_path, StoppedClock())
    files.remove_unused({"held", "current"})
    assert not files.has("old")
    assert left(tmp_path) == {
        "k8s.gpu.nvidia.com-device_held.yaml",
        "k8s.gpu.nvidia.com-device_current.yaml",
        "nvidia.com-gpu.yaml",
    }


def test_what_our_own_writer_left_when_it_died_is_removed_at_once(tmp_path: Path) -> None:
    make(tmp_path / "spec.k8s.gpu.nvidia.com-device_current.0a1b.tmp", timedelta(0))
    make(tmp_path / "spec.k8s.gpu.nvidia.com-device_ahead.0a1b.tmp", timedelta(hours=-1))
    SpecFiles(tmp_path, StoppedClock()).remove_unused({"current"})
    assert left(tmp_path) == set()


def test_what_another_writer_that_died_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    make(tmp_path / "spec.dead.tmp", timedelta(minutes=61))
    make(tmp_path / "spec.writing.tmp", timedelta(minutes=59))
    SpecFiles(tmp_path, StoppedClock()).remove_unused(set())
    assert left(tmp_path) == {"spec.writing.tmp"}


def test_a_spec_that_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert not SpecFiles(tmp_path / ("x" * 300), StoppedClock()).has("g")
