# SPDX-License-Identifier: Apache-2.0
"""Builds everything that a release of this state publishes, and says what would be wrong with it.

    make release-check
    python -m scripts.release_check --json

It builds the wheel of each package, the image of each component and the chart of each into
out/release, and prints a table with the version that the tree has, the version that would be
released, and the size. Then it compares what must agree, and releases everything in a clone.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from scripts import release, release_rehearsal, sibling_matrix
from scripts.release import REPOSITORY, UMBRELLA, ReleaseError

OUT = REPOSITORY / "out" / "release"
MIB = 1024**2


class Artifact(NamedTuple):
    """One thing that is published: `next_version` is empty if it would not be released now."""

    kind: str
    name: str
    version: str
    next_version: str
    bytes: int
    path: str


def tree_problems(repository: Path) -> list[str]:
    """What in the tree does not agree, each with what to do."""
    return [
        *_version_problems(repository),
        *_development_problems(repository),
        *_annotation_problems(repository),
        *_changelog_problems(repository),
        *_row_problems(repository),
    ]


def matrix_problems(repository: Path) -> list[str]:
    """The components of a tree whose ranges admit no sibling that exists."""
    known = known_versions(repository)
    problems = []
    for pyproject in sorted((repository / "packages").glob("*/pyproject.toml")):
        component = pyproject.parent.name
        try:
            sibling_matrix.combinations(component, sibling_matrix.ranges(pyproject), known)
        except sibling_matrix.NothingAdmittedError as error:
            problems.append(str(error))
    return problems


def known_versions(repository: Path) -> dict[str, list[str]]:
    """Package → its versions: those that were released, and the tree's."""
    found: dict[str, set[str]] = {}
    for package, version in release.rows(repository):
        found.setdefault(package, set()).add(version)
    for package in release_rehearsal.packages(repository):
        there = release.current_version(package, repository).of_wheel
        found.setdefault(package, set()).add(there)
    return {package: sorted(versions) for package, versions in found.items()}


def charts(repository: Path) -> dict[str, Path]:
    """The charts, by name."""
    umbrella = repository / "charts" / UMBRELLA
    found = [umbrella, *(path.parent for path in umbrella.glob("charts/*/Chart.yaml"))]
    return {path.name: path for path in sorted(found)}


def _chart(folder: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((folder / "Chart.yaml").read_text())
    return found


def _version_problems(repository: Path) -> Iterator[str]:
    """Charts have the version of their package, and the umbrella depends on that."""
    found = charts(repository)
    for name, folder in found.items():
        chart = _chart(folder)
        wanted = str(release.current_version(name, repository))
        for key in ("version", "appVersion"):
            if chart[key] != wanted:
                yield f"{name}: Chart.yaml has {key} {chart[key]}, its package {wanted}: set it"
    dependencies = _chart(found[UMBRELLA])["dependencies"]
    assert isinstance(dependencies, list)
    for each in dependencies:
        wanted = str(release.current_version(each["name"], repository))
        if each["version"] != wanted:
            yield (
                f"{UMBRELLA}: it depends on {each['name']} {each['version']}, and the tree has "
                f"{wanted}: set it in charts/{UMBRELLA}/Chart.yaml"
            )


def _development_problems(repository: Path) -> Iterator[str]:
    """A tree that has more than a release does not call itself that release."""
    released = release.rows(repository)
    for package in (*release_rehearsal.packages(repository), UMBRELLA):
        there = release.current_version(package, repository)
        if (package, str(there)) in released:
            yield (
                f"{package}: {there} is released, and this tree has more: set {there.opened} in "
                f"its Chart.yaml, and {there.opened.of_wheel} in its __about__.py"
            )


def _annotation_problems(repository: Path) -> Iterator[str]:
    """The umbrella names every package, and whoever names one names the tree's version."""
    packages = set(release_rehearsal.packages(repository))
    for name, folder in charts(repository).items():
        annotations = _chart(folder).get("annotations") or {}
        assert isinstance(annotations, dict)
        missing = packages - set(annotations) if name == UMBRELLA else set()
        for package in sorted(missing):
            yield f"{name}: the annotations of Chart.yaml do not name {package}: add it"
        for package, version in annotations.items():
            if package in packages:
                wanted = str(release.current_version(package, repository))
                if version != wanted:
                    yield (
                        f"{name}: its annotation says {package} {version}, and the tree has "
                        f"{wanted}: set it in Chart.yaml"
                    )


def _changelog_problems(repository: Path) -> Iterator[str]:
    """What was released has an entry, and what waits has a name that is not dropped in silence."""
    for package, version in sorted(release.rows(repository)):
        changelog = repository / "packages" / package / "CHANGELOG.md"
        if package != UMBRELLA and f"\n## {version} " not in changelog.read_text():
            yield f"{package}: CHANGELOG.md has no entry for {version}, which is released: add it"
    for package in release_rehearsal.packages(repository):
        try:
            if any((repository / "packages" / package / "changes.d").glob("*.md")):
                release.check_fragments(package, repository)
        except ReleaseError as error:
            yield f"{package}: {error}"


def _row_problems(repository: Path) -> Iterator[str]:
    """Each row of docs/releases.md names a commit that has that version."""
    text = (repository / release.RELEASES).read_text()
    rows = re.findall(r"^\| ([\w-]+) \| (\S+) \| \S+ \| ([0-9a-f]{40}) \|$", text, re.MULTILINE)
    if len(rows) != len(release.rows(repository)):
        yield f"{release.RELEASES}: a row has no date or no whole commit: write them"
    for package in (*release_rehearsal.packages(repository), UMBRELLA):
        is_released = any(package == name for name, _ in release.rows(repository))
        if is_released == (release.waiting_row(package) in text):
            yield f"{release.RELEASES}: name the releases of {package}, or say that there is none"
    for package, version, commit in rows:
        if package == UMBRELLA:
            continue
        abouts = f"packages/{package}/src/*/__about__.py"
        there = subprocess.run(
            ["git", "-C", repository, "grep", "-h", "__version__ =", commit, "--", abouts],
            capture_output=True,
            text=True,
            check=False,
        )
        if f'"{version}"' not in there.stdout:
            yield (
                f"{release.RELEASES}: {package} {version} is not what commit {commit[:10]} has "
                f"({there.stdout.strip() or there.stderr.strip()}): name the right one"
            )


def publication_problems(repository: Path) -> list[str]:
    """What a tree that says where it is published says wrongly, each with what to do."""
    return [
        f"{page.relative_to(repository)}: it would be published with a false sentence, "
        f"{found[0].strip()!r}: say where things are published"
        for pattern in ("packages/*/README.md", "charts/nvdra/**/README.md")
        for page in sorted(repository.glob(pattern))
        for found in re.finditer(r"[^.:]*\bpublished\s+yet", page.read_text())
    ]


def rehearsal() -> tuple[dict[str, str], list[str]]:
    """Release everything in a clone: what would be released, and what stands against it."""
    with tempfile.TemporaryDirectory(prefix="nvdra-release-") as folder:
        try:
            release.check_clean(REPOSITORY)
            clone, made = release_rehearsal.rehearse(Path(folder))
            released = [*tree_problems(clone), *matrix_problems(clone)]
            release_rehearsal.publish(clone, made)
        except ReleaseError as error:
            return {}, [f"the rehearsal: {error}"]
        released += publication_problems(clone)
        release_rehearsal.checkout_next(clone)
        after = [*tree_problems(clone), *matrix_problems(clone)]
    versions = {package: str(version) for package, version in made.items()}
    problems = [f"at the release: {each}" for each in released]
    return versions, problems + [f"after the release: {each}" for each in after]


def build(next_versions: Mapping[str, str]) -> list[Artifact]:
    """Build every wheel, image and chart of the tree into out/release.

    Raises:
        ReleaseError: Something cannot be built; the text has the program's output.
    """
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    made: list[Artifact] = []

    def add(kind: str, name: str, path: Path) -> None:
        version = str(release.current_version(name, REPOSITORY))
        where = str(path.relative_to(REPOSITORY))
        size = path.stat().st_size
        made.append(Artifact(kind, name, version, next_versions.get(name, ""), size, where))

    for package in release_rehearsal.packages(REPOSITORY):
        folder = REPOSITORY / "packages" / package
        release.run(["uv", "build", "--quiet", "--wheel", f"--out-dir={OUT}", str(folder)], folder)
        (wheel,) = OUT.glob(f"{package.replace('-', '_')}-*.whl")
        add("wheel", package, wheel)
    (OUT / ".gitignore").unlink(missing_ok=True)
    for line in release.run([*release.LAB, "image", "build"], REPOSITORY).splitlines():
        if found := re.match(r"docker\.io/nvdra/(nvdra-[a-z-]+):(\S+)\s+(\S+)$", line):
            target = OUT / f"{found[1]}-{found[2]}.oci.tar"
            shutil.copyfile(found[3], target)
            add("image", found[1], target)
    helm = release.helm()
    for name, folder in charts(REPOSITORY).items():
        release.run([helm, "package", str(folder), "--destination", str(OUT)], REPOSITORY)
        add("chart", name, OUT / f"{name}-{_chart(folder)['version']}.tgz")
    return made


def missing(artifacts: Sequence[Artifact], repository: Path) -> Iterator[str]:
    """What was not built: the wheel of each package, its image if it has one, and each chart."""
    packages = repository / "packages"
    wanted = {("wheel", package) for package in release_rehearsal.packages(repository)}
    wanted |= {("image", file.parent.name) for file in packages.glob("*/Dockerfile")}
    wanted |= {("chart", name) for name in charts(repository)}
    for kind, name in sorted(wanted - {(each.kind, each.name) for each in artifacts}):
        yield f"{name}: its {kind} was not built: look at what builds it"


def table(artifacts: list[Artifact]) -> str:
    """The artifacts as lines of a table, and how many there are of each kind."""
    lines = [f"{'KIND':6} {'NAME':20} {'VERSION':10} {'NEXT':8} {'MiB':>7}"]
    lines += [
        f"{each.kind:6} {each.name:20} {each.version:10} {each.next_version or '-':8} "
        f"{each.bytes / MIB:7.2f}"
        for each in artifacts
    ]
    kinds = [each.kind for each in artifacts]
    counts = [f"{kinds.count(kind)} {kind}s" for kind in dict.fromkeys(kinds)]
    return "\n".join([*lines, f"{', '.join(counts)}, in {OUT.relative_to(REPOSITORY)}"])


def main() -> int:
    """Run the command; return its exit status: 1 if something is wrong."""
    parser = argparse.ArgumentParser(description="Build and check what a release publishes.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    arguments = parser.parse_args()
    problems = [*tree_problems(REPOSITORY), *matrix_problems(REPOSITORY)]
    next_versions, found = rehearsal()
    problems += found
    artifacts: list[Artifact] = []
    try:
        artifacts = build(next_versions)
        problems += missing(artifacts, REPOSITORY)
    except ReleaseError as error:
        problems.append(str(error))
    if arguments.json:
        said = {"artifacts": [each._asdict() for each in artifacts], "problems": problems}
        print(json.dumps(said, indent=2))
    else:
        print(table(artifacts))
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        if not problems:
            print("✓ versions, changelogs and charts agree, and a rehearsed release works")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
