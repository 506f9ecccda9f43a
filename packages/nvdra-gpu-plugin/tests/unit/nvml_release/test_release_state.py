# SPDX-License-Identifier: Apache-2.0
"""What an annotation asks for, and when a release is over."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvdra_gpu_plugin.nvml_release import nvml_release, release_state
from nvdra_gpu_plugin.nvml_release.release_state import ReleaseRequest
from nvdra_runtime.kubeletplugin import nvml_release as node_release
from nvdra_runtime.kubeletplugin.nvml_release import Origin, Release, ReleaseState

NOW = datetime(2026, 8, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "duration_s", "is_forced"),
    [
        ("true", None, False),
        ("15m", 900, False),
        ("1h30m", 5400, False),
        ("true,force", None, True),
        (" 15m , force ", 900, True),
    ],
)
def test_an_annotation_says_for_how_long_and_whether_it_is_forced(
    value: str, duration_s: float | None, is_forced: bool
) -> None:
    expected = ReleaseRequest(origin=Origin.ANNOTATION, duration_s=duration_s, is_forced=is_forced)
    assert release_state.parse_annotation(value) == expected


@pytest.mark.parametrize("value", ["", "false", "false,force"])
def test_an_annotation_may_ask_for_nothing(value: str) -> None:
    assert release_state.parse_annotation(value) is None


@pytest.mark.parametrize("value", ["soon", "15", "0s", "-1m", "15m,now", "force", "True"])
def test_other_values_are_not_valid(value: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is not the word"):
        release_state.parse_annotation(value)


def test_a_release_that_is_asked_for_again_keeps_its_begin_and_gets_a_new_end() -> None:
    request = ReleaseRequest(origin=Origin.COMMAND, duration_s=60)
    later = NOW + timedelta(minutes=5)
    release = release_state.begin(request, later, since=NOW)
    assert release == Release(origin=Origin.COMMAND, since=NOW, until=later + timedelta(seconds=60))
    assert not release.is_over(later)
    assert release.is_over(later + timedelta(seconds=60))


def test_a_process_that_starts_after_the_end_is_not_released_and_knows_the_annotation(
    tmp_path: Path,
) -> None:
    release = Release(origin=Origin.ANNOTATION, since=NOW, until=NOW + timedelta(seconds=60))
    node_release.write(tmp_path, ReleaseState(release=release, annotation="1m"))
    left = nvml_release.left_by_earlier_process(tmp_path, NOW + timedelta(hours=1))
    assert left == ReleaseState(annotation="1m")
