"""What a release writes into charts."""

from pathlib import Path

import pytest
import yaml

from scripts import release
from scripts.release import Version

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
