# SPDX-License-Identifier: Apache-2.0
"""What a tag releases, for the workflow that publishes it.

    python3 scripts/release_plan.py nvdra-gpu-plugin-v0.2.0
    python3 scripts/release_plan.py nvdra-gpu-plugin-v0.2.0 --notes

The first prints the package, its version and what there is to publish, the second the version's
entry of the changelog. It needs Python alone, and refuses a tag whose version is not that of the
tree.
"""

import argparse
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
UMBRELLA = "nvdra"
TAG = re.compile(r"(?P<package>nvdra(?:-[a-z]+)*)-v(?P<version>\d+\.\d+\.\d+)")


class TagError(Exception):
    """The tag names nothing that this tree can release; the text says why."""


def plan(tag: str, repository: Path) -> dict[str, str]:
    """Return the package, its version, whether it has a wheel and an image, and its chart's folder.

    Raises:
        TagError: The tag has another form, or the tree has another version of the package.
    """
    found = TAG.fullmatch(tag)
    if found is None:
        raise TagError(f"{tag!r} is no tag such as nvdra-gpu-plugin-v0.2.0")
    package, version = found["package"], found["version"]
    folder = repository / "packages" / package
    chart = chart_folder(package, repository) / "Chart.yaml"
    versions = {
        path: _version(path.read_text())
        for path in (*sorted(folder.glob("src/*/__about__.py")), chart)
        if path.exists()
    }
    if not versions:
        raise TagError(f"there is no package {package}")
    for path, there in versions.items():
        if there != version:
            where = path.relative_to(repository)
            raise TagError(f"{tag} releases {version}, and {where} says {there}")
    return {
        "package": package,
        "version": version,
        "wheel": _yes((folder / "pyproject.toml").exists()),
        "image": _yes((folder / "Dockerfile").exists()),
        "chart": str(chart.parent.relative_to(repository)) if chart.exists() else "",
    }


def chart_folder(package: str, repository: Path) -> Path:
    """Where the chart of a package is, if it has one: the others are parts of the umbrella's."""
    umbrella = repository / "charts" / UMBRELLA
    return umbrella if package == UMBRELLA else umbrella / "charts" / package


def notes(package: str, version: str, repository: Path) -> str:
    """Return a version's entry of the changelog; for the umbrella chart, what it contains."""
    changelog = repository / "packages" / package / "CHANGELOG.md"
    if not changelog.exists():
        chart = (chart_folder(package, repository) / "Chart.yaml").read_text()
        parts = re.findall(r"- name: (\S+)\n(?:\s+alias: \S+\n)?\s+version: (\S+)", chart)
        return "".join(f"- {name} {there}\n" for name, there in parts)
    entry = re.search(
        rf"^## {re.escape(version)} .*?\n(.*?)(?=^## |\Z)",
        changelog.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    return f"{entry[1].strip()}\n" if entry else ""


def _version(text: str) -> str:
    found = re.search(r"^(?:__version__ = \"|version: )([\w.-]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _yes(value: bool) -> str:
    return str(value).lower()


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="What a tag releases.")
    parser.add_argument("tag", help="such as nvdra-gpu-plugin-v0.2.0")
    parser.add_argument("--notes", action="store_true", help="print the entry of the changelog")
    arguments = parser.parse_args()
    try:
        found = plan(arguments.tag, REPOSITORY)
    except TagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.notes:
        print(notes(found["package"], found["version"], REPOSITORY), end="")
    else:
        print("\n".join(f"{key}={value}" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
