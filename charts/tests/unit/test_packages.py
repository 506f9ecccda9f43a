# SPDX-License-Identifier: Apache-2.0
"""What a packaged chart brings along: for `helm show`, for catalogues, and with its registry."""

import base64
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import COMPONENTS, UMBRELLA, folder, version

from scripts import publication

ALL = (UMBRELLA, *COMPONENTS)
KEYS = dict(zip(COMPONENTS, (*COMPONENTS[:3], "webhook"), strict=True))
"""Chart → where its values are in those of the umbrella."""
WHERE = publication.Place(
    "https://git.example.com/team/nvdra", "quay.example.com/team", "nvdra-v1.2.3"
)


@pytest.fixture(scope="module")
def published(charts: Path, helm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of all charts as the workflow publishes them."""
    tree = tmp_path_factory.mktemp("published")
    shutil.copytree(charts / "nvdra", tree / "charts/nvdra")
    publication.write(WHERE, tree)
    for name in ALL:
        run(helm, "package", str(folder(name, tree / "charts")), "--destination", str(tree))
    return tree


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package(published: Path, name: str) -> Path:
    return published / f"{name}-{version(name)}.tgz"


@pytest.mark.parametrize("name", ALL)
def test_a_package_has_a_page_a_licence_and_where_it_comes_from(
    helm: str, charts: Path, published: Path, name: str
) -> None:
    archive = package(published, name)
    page = run(helm, "show", "readme", str(archive))
    assert page.lstrip().startswith(f"# {name}\n")
    assert (
        "](https://git.example.com/team/nvdra/blob/nvdra-v1.2.3/docs/" in page or name != UMBRELLA
    )
    assert "](." not in page
    told: dict[str, Any] = yaml_documents.load(run(helm, "show", "chart", str(archive)))
    place = folder(name, Path("charts"))
    assert told["home"] == WHERE.repository
    assert told["sources"] == [f"{WHERE.repository}/tree/nvdra-v1.2.3/{place}"]
    assert told["maintainers"] == [{"name": "The nvdra authors", "url": WHERE.repository}]
    assert told["annotations"]["artifacthub.io/license"] == "Apache-2.0"
    with tarfile.open(archive) as files:
        licence = files.extractfile(f"{name}/LICENSE")
        assert licence is not None
        assert licence.read() == (charts.parent / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", ALL)
def test_a_published_chart_finds_its_images_by_itself(
    helm: str, published: Path, name: str
) -> None:
    values = ["--set=resources.gpus.enabled=true"] if name == UMBRELLA else []
    if name.endswith("webhook"):
        values = ["--set=tls.mode=self-managed"]
    text = run(
        *(helm, "template", "nvdra", str(package(published, name)), "--namespace=gpus"),
        *("--kube-version=1.36.3", "--skip-tests", *values),
    )
    images = re.findall(r"^\s*image: \"?([^\s\"]+)", text, re.MULTILINE)
    assert images
    assert [each for each in images if not each.startswith(f"{WHERE.registry}/nvdra/nvdra-")] == []


def test_the_umbrella_shows_the_values_of_its_parts(helm: str, charts: Path) -> None:
    text = run(helm, "show", "values", str(charts / "nvdra"))
    own = yaml_documents.load(text)
    for chart, key in KEYS.items():
        shown = re.search(rf"  # <values of {chart}>\n(.*?)  # <end>\n", text, re.DOTALL)
        assert shown is not None
        uncommented = re.sub(r"^  # ?", "", shown[1], flags=re.MULTILINE)
        part = yaml_documents.load((folder(chart, charts) / "values.yaml").read_text())
        part = {name: each for name, each in part.items() if name not in ("global", "enabled")}
        assert yaml_documents.load(uncommented) == part
        # They are comments: no upgrade with --reuse-values keeps a default of a former release.
        assert own[key] == ({"enabled": False} if key == "webhook" else {})


def test_values_that_are_uncommented_in_their_place_are_taken(helm: str, charts: Path) -> None:
    text = run(helm, "show", "values", str(charts / "nvdra"))
    before, _, after = text.partition("nvdra-gpu-plugin: {}\n  # <values of nvdra-gpu-plugin>\n")
    shown, _, rest = after.partition("  # <end>\n")
    uncommented = re.sub(r"^  # ?", "  ", shown, flags=re.MULTILINE)
    values = yaml_documents.load(f"{before}nvdra-gpu-plugin:\n{uncommented}{rest}")
    assert values["nvdra-gpu-plugin"]["kubeletPlugin"]["updateStrategy"]["type"] == "RollingUpdate"


def complete(charts: Path) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, str(charts / "complete_packages.py")]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(charts: Path, tmp_path: Path) -> Path:
    """Copies of the charts that a test may change, with the licence beside them."""
    shutil.copyfile(charts.parent / "LICENSE", tmp_path / "LICENSE")
    ignored = shutil.ignore_patterns("tests", "templates")
    return shutil.copytree(charts, tmp_path / "charts", ignore=ignored)


def test_what_packages_need_is_there_and_new(charts: Path, copy: Path) -> None:
    made = [*copy.glob("nvdra/**/LICENSE"), *copy.glob("nvdra/**/Chart.yaml")]
    assert len(made) == 2 * len(ALL)
    for file in made:
        text = file.read_text()
        file.write_text(re.sub(r"^icon:.*", "icon:", text, flags=re.M) if text else "")
    values = copy / "nvdra/values.yaml"
    values.write_text(values.read_text().replace("  #   tag:", "  #   stale:"))
    assert complete(copy).returncode == 0
    for file in (*made, values):
        there = (charts / file.relative_to(copy)).read_text()
        assert file.read_text() == there, "python charts/complete_packages.py"


def test_the_icon_is_the_picture_itself(charts: Path) -> None:
    for name in ALL:
        icon = yaml_documents.load((folder(name, charts) / "Chart.yaml").read_text())["icon"]
        kind, _, data = icon.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(data) == (charts / "icon.svg").read_bytes()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("values.yaml", "  # <values of nvdra-webhook>\n", ""),
        ("values.yaml", "  # <values of nvdra-webhook>", "  # <values of other>"),
        ("values.yaml", "  # <end>\n", ""),
    ],
)
def test_values_that_have_no_place_are_an_error(copy: Path, file: str, old: str, new: str) -> None:
    path = copy / "nvdra" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    before = path.read_text()
    done = complete(copy)
    assert done.returncode == 1
    assert "is needed for each of nvdra-cd-controller, nvdra-cd-plugin, " in done.stderr
    assert path.read_text() == before


def test_a_chart_without_a_line_for_its_icon_is_an_error(copy: Path) -> None:
    chart = copy / "nvdra/Chart.yaml"
    chart.write_text(re.sub(r"^icon:.*\n", "", chart.read_text(), flags=re.MULTILINE))
    done = complete(copy)
    assert (done.returncode, done.stderr) == (1, "a Chart.yaml needs one line `icon:`\n")
