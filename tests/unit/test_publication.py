# SPDX-License-Identifier: Apache-2.0
"""What the addresses of a release are written into, and what packages say of themselves."""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import publication, site_pages
from scripts.publication import Place, PublicationError

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
CHARTS = sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("charts/nvdra/**/Chart.yaml"))
WHERE = Place("https://git.example.com/team/nvdra", "registry.example.com/team", "nvdra-v9.8.7")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("charts", "packages"):
        ignored = shutil.ignore_patterns("src", "tests", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def everything(tree: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_the_tree_names_no_address_of_its_own() -> None:
    assert [name for name in PACKAGES if "urls" in project(ROOT / "packages" / name)] == []
    for chart in CHARTS:
        assert {"home", "sources"} & load(ROOT / chart / "Chart.yaml").keys() == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_the_addresses_of_its_release(tree: Path, package: str) -> None:
    before = project(tree / "packages" / package)
    publication.write(WHERE, tree)
    urls = {
        "Homepage": "https://git.example.com/team/nvdra",
        "Documentation": "https://git.example.com/team/nvdra/tree/nvdra-v9.8.7/docs",
        "Source": f"https://git.example.com/team/nvdra/tree/nvdra-v9.8.7/packages/{package}",
        "Changelog": "https://git.example.com/team/nvdra/blob/nvdra-v9.8.7/"
        f"packages/{package}/CHANGELOG.md",
        "Issues": "https://git.example.com/team/nvdra/issues",
    }
    assert project(tree / "packages" / package) == {**before, "urls": urls}


@pytest.mark.parametrize("chart", CHARTS, ids=lambda path: path.name)
def test_a_chart_has_the_addresses_of_its_release_and_the_registry_of_its_images(
    tree: Path, chart: Path
) -> None:
    before, values = load(tree / chart / "Chart.yaml"), load(tree / chart / "values.yaml")
    assert values["global"]["imageRegistry"] == ""
    publication.write(WHERE, tree)
    assert load(tree / chart / "Chart.yaml") == {
        **before,
        "home": "https://git.example.com/team/nvdra",
        "sources": [f"https://git.example.com/team/nvdra/tree/nvdra-v9.8.7/{chart}"],
        "maintainers": [{"name": "The nvdra authors", "url": "https://git.example.com/team/nvdra"}],
    }
    values["global"]["imageRegistry"] = "registry.example.com/team"
    assert load(tree / chart / "values.yaml") == values


def pages(tree: Path) -> list[Path]:
    return [*tree.glob("packages/*/README.md"), *tree.glob("charts/nvdra/**/README.md")]


def test_no_page_of_a_package_has_a_link_that_is_dead_elsewhere(tree: Path) -> None:
    publication.write(WHERE, tree)
    links = [
        found[3]
        for page in pages(tree)
        for found in site_pages.LINK.finditer(site_pages.BLOCK.sub("", page.read_text()))
    ]
    assert [link for link in links if not re.match(r"https://|#", link)] == []
    ours = [link for link in links if link.startswith(WHERE.repository)]
    assert len(ours) > 5
    for link in ours:
        kind, tag, path = link.removeprefix(f"{WHERE.repository}/").partition("#")[0].split("/", 2)
        assert tag == WHERE.tag
        assert (ROOT / path).exists(), link
        assert (kind == "tree") == (ROOT / path).is_dir(), link


def test_links_and_pictures_get_their_own_kinds_of_address() -> None:
    text = (
        "[a](../../docs/reasons.md#x) [b](../nvdra-cdi) ![c](../../docs/images/c.png) [d](#d)\n"
        "[e](https://example.com/e)\n```sh\n[f](../f)\n```\n"
    )
    made = publication.absolute(
        text, "packages/p/README.md", WHERE, is_folder=lambda path: path == "packages/nvdra-cdi"
    )
    base = WHERE.repository
    assert made == (
        f"[a]({base}/blob/nvdra-v9.8.7/docs/reasons.md#x) "
        f"[b]({base}/tree/nvdra-v9.8.7/packages/nvdra-cdi) "
        f"![c]({base}/raw/nvdra-v9.8.7/docs/images/c.png) [d](#d)\n"
        "[e](https://example.com/e)\n```sh\n[f](../f)\n```\n"
    )


def test_a_published_page_does_not_say_that_nothing_is_published() -> None:
    told = {page.relative_to(ROOT): page.read_text() for page in pages(ROOT)}
    assert [page for page, text in told.items() if re.search(r"published\s+yet", text)] == []


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        ("charts/nvdra/values.yaml", 'imageRegistry: ""', "imageRegistry: x", "0 times, not once"),
        ("charts/nvdra/Chart.yaml", "The nvdra authors", "Others", "does not name 'The nvdra"),
        (
            "packages/nvdra-webhook/pyproject.toml",
            "[tool.hatch.version]",
            "[project.urls]\n[tool.hatch.version]",
            "git checkout packages/nvdra-webhook/pyproject.toml",
        ),
    ],
)
def test_a_tree_that_is_otherwise_is_refused_and_left_as_it_is(
    tree: Path, path: str, old: str, new: str, why: str
) -> None:
    text = (tree / path).read_text()
    assert old in text
    (tree / path).write_text(text.replace(old, new, 1))
    before = everything(tree)
    with pytest.raises(PublicationError, match=re.escape(why)):
        publication.write(WHERE, tree)
    assert everything(tree) == before


def test_a_tree_is_written_once(tree: Path) -> None:
    publication.write(WHERE, tree)
    with pytest.raises(PublicationError, match="begin with a clean tree"):
        publication.write(WHERE, tree)


@pytest.mark.parametrize(
    ("repository", "registry", "remedy"),
    [
        ("git@github.com:team/nvdra", "ghcr.io/team", "write it as https://github.com/OWNER/nvdra"),
        ("https://github.com/team/nvdra/", "ghcr.io/team", "write it as https://"),
        ("https://github.com", "ghcr.io/team", "write it as https://"),
        ("https://github.com/team/nvdra", "https://ghcr.io/team", "write it as ghcr.io/owner"),
        ("https://github.com/team/nvdra", "ghcr.io/Team", "in small letters"),
        ("https://github.com/team/nvdra", "", "write it as ghcr.io/owner"),
    ],
)
def test_an_address_of_another_form_is_refused_with_the_right_one(
    repository: str, registry: str, remedy: str
) -> None:
    assert publication.place("https://github.com/team/nvdra", "ghcr.io/team", "v1")
    with pytest.raises(PublicationError, match=re.escape(remedy)):
        publication.place(repository, registry, "v1")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_for_which_pythons_it_is(package: str) -> None:
    checked = load(ROOT / ".github/workflows/check.yml")["jobs"]["check"]["strategy"]["matrix"]
    told = project(ROOT / "packages" / package)
    versions = re.findall(r"Python :: (3\.\d+)$", "\n".join(told["classifiers"]), re.MULTILINE)
    assert versions == checked["python"]
    assert told["requires-python"] == f">={versions[0]}"
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= set(told["classifiers"])
