# SPDX-License-Identifier: Apache-2.0
"""docs/versions.md says which versions belong together."""

from pathlib import Path

from scripts import document_versions
from scripts.document_versions import Together

ROOT = Path(__file__).parents[2]
COMMIT = "f4479514e5a7031ae05036d86bc56d6c3cb05de8"


def row(package: str, version: str, date: str = "2026-11-23") -> str:
    return f"| {package} | {version} | {date} | {COMMIT} |\n"


def test_the_page_is_what_the_releases_say() -> None:
    page = (ROOT / document_versions.PAGE).read_text()
    assert document_versions.table(ROOT) in page, "run `python -m scripts.document_versions`"
    assert document_versions.page(ROOT) == page


def test_a_release_of_the_chart_has_the_last_version_of_each_package_before_it() -> None:
    releases = (
        row("nvdra-api", "0.1.0")
        + row("nvdra-gpu-plugin", "0.1.0")
        + row("nvdra", "0.1.0")
        + row("nvdra-gpu-plugin", "0.1.1", "2026-12-01")
        + "| nvdra-webhook | - | not released yet | - |\n"
        + row("nvdra-api", "0.2.0", "2027-01-02")
        + row("nvdra", "0.2.0", "2027-01-02")
        + row("nvdra-gpu-plugin", "0.2.0", "2027-01-03")
    )
    assert list(document_versions.together(releases)) == [
        Together("0.1.0", "2026-11-23", {"nvdra-api": "0.1.0", "nvdra-gpu-plugin": "0.1.0"}),
        Together("0.2.0", "2027-01-02", {"nvdra-api": "0.2.0", "nvdra-gpu-plugin": "0.1.1"}),
    ]


def test_the_newest_release_is_the_first_and_a_package_without_one_has_a_dash(
    tmp_path: Path,
) -> None:
    for name in ("nvdra-api", "nvdra-webhook"):
        (tmp_path / "packages" / name).mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "releases.md").write_text(
        row("nvdra-api", "0.1.0") + row("nvdra", "0.1.0") + row("nvdra", "0.1.1", "2026-12-01")
    )
    assert document_versions.table(tmp_path) == (
        "| nvdra | date | nvdra-api | nvdra-webhook |\n| --- | --- | --- | --- |\n"
        "| 0.1.1 | 2026-12-01 | 0.1.0 | - |\n| 0.1.0 | 2026-11-23 | 0.1.0 | - |\n"
    )
