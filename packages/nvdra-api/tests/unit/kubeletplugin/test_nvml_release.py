# SPDX-License-Identifier: Apache-2.0
"""The file that says whether NVML is released, and what waits are told."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvdra_api.ids import NodeName
from nvdra_runtime.kubeletplugin import nvml_release
from nvdra_runtime.kubeletplugin.nvml_release import Origin, Release, ReleaseState

NOW = datetime(2026, 8, 1, tzinfo=UTC)


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    release = Release(origin=Origin.ANNOTATION, since=NOW, until=NOW + timedelta(seconds=60))
    state = ReleaseState(release=release, annotation="1m")
    nvml_release.write(tmp_path, state)
    assert nvml_release.read(tmp_path) == state
    assert nvml_release.in_force(tmp_path, NOW) == release
    assert not nvml_release.in_force(tmp_path, NOW + timedelta(seconds=60))
    nvml_release.write(tmp_path, ReleaseState())
    assert list(tmp_path.iterdir()) == []
    assert not nvml_release.in_force(tmp_path, NOW)


@pytest.mark.parametrize("content", [b"", b"{", b'{"release": {"since": 1}}', b"\xff"])
def test_a_file_that_cannot_be_understood_says_that_nothing_is_released(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "nvml-release.json").write_bytes(content)
    assert not nvml_release.in_force(tmp_path, NOW)


def test_a_file_that_cannot_be_read_says_that_nothing_is_released(tmp_path: Path) -> None:
    (tmp_path / "nvml-release.json").mkdir()
    assert not nvml_release.in_force(tmp_path, NOW)


@pytest.mark.parametrize(
    ("origin", "remedy"),
    [
        (Origin.COMMAND, "nvdra-gpu-plugin resume"),
        (Origin.ANNOTATION, "kubectl annotate node n-1 gpu.nvidia.com/release-nvml-"),
    ],
)
def test_whoever_waits_is_told_until_when_and_what_ends_it(origin: Origin, remedy: str) -> None:
    text = str(nvml_release.error(Release(origin=origin, since=NOW, until=NOW), NodeName("n-1")))
    assert " until 2026-08-01T00:00:00Z" in text
    assert remedy in text
