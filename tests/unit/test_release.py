# SPDX-License-Identifier: Apache-2.0
"""Which version a release has, and what it writes into charts."""

from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from scripts import release
from scripts.release import ReleaseError, Version

ROOT = Path(__file__).parents[2]
UMBRELLA = (ROOT / "charts/nvdra/Chart.yaml").read_text()
NEW = Version(9, 8, 7)


@pytest.mark.parametrize(
    "name", [each["name"] for each in yaml.safe_load(UMBRELLA)["dependencies"]]
)
def test_the_umbrella_depends_on_the_released_version_of_any_chart(name: str) -> None:
    before = yaml.safe_load(UMBRELLA)["dependencies"]
    after = yaml.safe_load(release.chart_depending_on(UMBRELLA, name, NEW))["dependencies"]
    assert after == [
        {**each, "version": "9.8.7"} if each["name"] == name else each for each in before
    ]


def test_charts_that_name_a_package_name_its_released_version() -> None:
    for path in ("charts/nvdra", "charts/nvdra/charts/nvdra-cd-controller"):
        chart = (ROOT / path / "Chart.yaml").read_text()
        before = yaml.safe_load(chart)
        after = yaml.safe_load(release.annotated(chart, "nvdra-imex-daemon", NEW))
        named = {**before["annotations"], "nvdra-imex-daemon": "9.8.7"}
        assert after == {**before, "annotations": named}


def test_a_chart_that_names_no_package_stays_as_it_is() -> None:
    chart = (ROOT / "charts/nvdra/charts/nvdra-gpu-plugin/Chart.yaml").read_text()
    assert release.annotated(chart, "nvdra-imex-daemon", NEW) == chart


def read(text: str) -> Version:
    return Version.parse(text)


def test_versions_are_written_as_charts_and_as_wheels_write_them() -> None:
    assert (str(read("1.2.3")), read("1.2.3").of_wheel) == ("1.2.3", "1.2.3")
    assert (str(read("1.2.0.dev0")), read("1.2.0-dev").of_wheel) == ("1.2.0-dev", "1.2.0.dev0")
    for text in ("1.2", "1.2.3-rc1", "1.2.3.dev1", "v1.2.3"):
        with pytest.raises(ReleaseError):
            read(text)


def test_what_comes_before_a_release_is_less_than_it() -> None:
    assert read("0.1.9") < read("0.2.0-dev") < read("0.2.0") < read("0.2.1-dev")


@pytest.mark.parametrize(
    ("current", "wanted", "version"),
    [
        ("0.2.0-dev", "minor", "0.2.0"),
        ("0.2.0-dev", "major", "1.0.0"),
        ("0.2.0-dev", "0.2.0", "0.2.0"),
        ("0.2.0-dev", "0.4.0", "0.4.0"),
        ("1.0.0-dev", "major", "1.0.0"),
        ("0.2.1-dev", "patch", "0.2.1"),
        ("0.2.1-dev", "minor", "0.3.0"),
        # On a branch of a tag.
        ("0.2.0", "patch", "0.2.1"),
        ("0.2.0", "minor", "0.3.0"),
    ],
)
def test_a_release_is_what_the_tree_is_on_its_way_to_or_more(
    current: str, wanted: str, version: str
) -> None:
    assert release.next_version(read(current), wanted) == read(version)


@pytest.mark.parametrize(
    ("current", "wanted", "why"),
    [
        ("0.2.0-dev", "patch", "release a patch from a branch of the tag"),
        ("0.2.0-dev", "0.1.1", "0.1.1 is not newer than 0.2.0-dev"),
        ("0.2.0", "0.2.0", "0.2.0 is not newer than 0.2.0"),
        ("0.2.0-dev", "0.3.0-dev", "is what comes before a release"),
    ],
)
def test_a_release_of_less_is_refused(current: str, wanted: str, why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        release.next_version(read(current), wanted)


@pytest.mark.parametrize(
    ("version", "admitted", "others"),
    [
        ("0.2.0-dev", ["0.2.0.dev0", "0.2.0", "0.2.7"], ["0.1.9", "0.3.0.dev0", "0.3.0"]),
        ("0.2.1", ["0.2.0", "0.2.1"], ["0.2.0.dev0", "0.3.0.dev0", "0.3.0"]),
        ("1.3.0-dev", ["1.3.0.dev0", "1.9.0"], ["1.2.0", "2.0.0.dev0", "2.0.0"]),
    ],
)
def test_a_range_admits_what_is_compatible(
    version: str, admitted: list[str], others: list[str]
) -> None:
    specifier = SpecifierSet(read(version).compatible_range)
    assert [each for each in [*admitted, *others] if each in specifier] == admitted


def test_ranges_move_with_every_version() -> None:
    before = 'dependencies = ["nvdra-cdi>=0.1,<0.2", "nvdra-api[kube]>=0.2.0.dev0,<0.3"]'
    moved = release.widened(before, "nvdra-api", read("0.2.0"))
    assert moved == 'dependencies = ["nvdra-cdi>=0.1,<0.2", "nvdra-api[kube]>=0.2,<0.3"]'
    assert release.widened(moved, "nvdra-api", read("0.2.0").opened) == (
        'dependencies = ["nvdra-cdi>=0.1,<0.2", "nvdra-api[kube]>=0.3.0.dev0,<0.4"]'
    )


def test_what_others_need_is_released_first_and_the_umbrella_last() -> None:
    names = ["nvdra", "nvdra-cd-controller", "nvdra-imex-daemon", "nvdra-gpu-plugin", "nvdra-cdi"]
    more = ["nvdra-api", "nvdra-cd-plugin", "nvdra-webhook", "nvdra-migrate"]
    order = list(release.planned([*names, *more], "minor", ROOT))
    assert order[:2] == ["nvdra-api", "nvdra-cdi"]
    assert order[-1] == "nvdra"
    # Its chart names the daemon's image.
    assert order.index("nvdra-imex-daemon") < order.index("nvdra-cd-controller")


@pytest.mark.parametrize(
    ("package", "needed"),
    [
        ("nvdra-gpu-plugin", "nvdra-api"),
        ("nvdra-cd-controller", "nvdra-imex-daemon"),
        ("nvdra", "nvdra-webhook"),
    ],
)
def test_what_a_package_needs_is_released_with_it(package: str, needed: str) -> None:
    others = sorted(release.siblings(package, ROOT) - {needed})
    needs = f"depends on {needed}, of which the tree has "
    with pytest.raises(ReleaseError, match=needs):
        release.planned([package, *others], "minor", ROOT)
