# SPDX-License-Identifier: Apache-2.0
"""Release packages: version, changelog, commit, tag, wheel, image and chart of each.

    python scripts/release.py nvdra-cdi minor
    python scripts/release.py nvdra-api nvdra-cdi nvdra-gpu-plugin minor --artifacts wheel,image

Between releases the tree has the next version with `-dev`: 0.3.0-dev in charts and as the tag of
images, 0.3.0.dev0 in wheels, so that nothing that is built from it looks like a release.

Each package takes one commit, which sets the version in `__about__.py` and in the package's chart,
folds `changes.d/` into CHANGELOG.md and moves the ranges of packages that depend on this one; it is
tagged `<package>-v<version>`. A last commit adds their rows to docs/releases.md, which names the
commits, because tags do not travel with every copy of the repository, makes docs/versions.md anew
and opens the next versions.
What a package depends on is released with it. `nvdra` releases the umbrella chart, which names the
charts that were tested together.

The artifacts are built from a checkout of the tag and written to dist/. With --repository and
--registry wheels and charts say where they are published (scripts/publication.py).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
UMBRELLA = "nvdra"
RELEASES = Path("docs/releases.md")
ARTIFACTS = ("wheel", "image", "chart")
LAB = (sys.executable, "-c", "import sys; from nvdra_lab import cli; sys.exit(cli.main())")
_ABOUT = re.compile(r'__version__ = "([^"]+)"')
_FRAGMENT = re.compile(r"^\w+\.(added|changed|deprecated|removed|fixed|security)(\.\d+)?\.md$")
_NAME_OF_FRAGMENT = re.compile(r" \(#[a-z]\w*(?:, #[a-z]\w*)*\)$", re.MULTILINE)
_FIRST_LINES = """# Releases

The commit of each version. Each package has its own versions; `nvdra` is the umbrella chart. A tag
`<package>-v<version>` marks the same commit where tags are kept.

| package | version | date | commit |
|---|---|---|---|
"""


class Version(NamedTuple):
    """A version, or what comes before it: 0.2.0-dev, which is less than 0.2.0."""

    major: int
    minor: int
    patch: int
    is_final: bool = True

    def __str__(self) -> str:
        """As SemVer writes it, for charts and the tags of images."""
        return self._written("-dev")

    @property
    def of_wheel(self) -> str:
        """As PEP 440 writes it."""
        return self._written(".dev0")

    def _written(self, suffix: str) -> str:
        number = f"{self.major}.{self.minor}.{self.patch}"
        return number if self.is_final else f"{number}{suffix}"

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Read `1.2.3`, `1.2.3-dev` or `1.2.3.dev0`.

        Raises:
            ReleaseError: It is no such version.
        """
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(-dev|\.dev0)?", text)
        if found is None:
            raise ReleaseError(f"{text!r} is no version such as 1.2.3")
        return cls(int(found[1]), int(found[2]), int(found[3]), is_final=not found[4])

    @property
    def final(self) -> "Version":
        """What it comes before."""
        return self._replace(is_final=True)

    def bumped(self, part: str) -> "Version":
        """Return the next version that `part` asks for: major, minor or patch.

        Raises:
            ReleaseError: The tree is on its way to a version with more.
        """
        if not self.is_final:
            if part == "patch" and self.patch == 0:
                raise ReleaseError(
                    f"the tree is {self}: release a patch from a branch of the tag of the release"
                )
            if self.patch == 0 and (part != "major" or self.minor == 0):
                return self.final
            if part == "patch":
                return self.final
        if part == "major":
            return Version(self.major + 1, 0, 0)
        if part == "minor":
            return Version(self.major, self.minor + 1, 0)
        return Version(self.major, self.minor, self.patch + 1)

    @property
    def opened(self) -> "Version":
        """What the tree has after its release."""
        return self.bumped("minor")._replace(is_final=False)

    @property
    def compatible_range(self) -> str:
        """The range for packages that depend on it; before 1.0 a minor version may break."""
        above = Version(0, self.minor + 1, 0) if self.major == 0 else Version(self.major + 1, 0, 0)
        upper = f"{above.major}.{above.minor}" if above.major == 0 else f"{above.major}"
        # A range takes versions before a release only if it names one.
        lower = f"{self.major}.{self.minor}" if self.is_final else self.of_wheel
        return f">={lower},<{upper}"


class ReleaseError(Exception):
    """The release cannot be made; the text says why and what to do."""


def next_version(current: Version, wanted: str) -> Version:
    """Return the version to release.

    Args:
        current: The version in the tree.
        wanted: `major`, `minor`, `patch` or a version.

    Raises:
        ReleaseError: It is not newer than the current one.
    """
    version = (
        current.bumped(wanted) if wanted in ("major", "minor", "patch") else Version.parse(wanted)
    )
    if version <= current:
        raise ReleaseError(f"{version} is not newer than {current}, which the tree has")
    if not version.is_final:
        raise ReleaseError(f"{version} is what comes before a release: leave out what is after it")
    return version


def widened(pyproject: str, package: str, version: Version) -> str:
    """Return a pyproject.toml whose range of `package` admits `version`."""
    pattern = re.compile(rf'("{re.escape(package)}(?:\[[^\]]*\])?)>=[\w.]+,<[\w.]+')
    return pattern.sub(lambda match: match[1] + version.compatible_range, pyproject)


def chart_with(chart: str, version: Version) -> str:
    """Return a Chart.yaml of that version; what it depends on stays."""
    text = re.sub(r"^version: .*$", f"version: {version}", chart, count=1, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f"appVersion: {version}", text, count=1, flags=re.MULTILINE)


def chart_depending_on(chart: str, dependency: str, version: Version) -> str:
    """Return the umbrella's Chart.yaml with that version of one dependency."""
    pattern = rf"(- name: {re.escape(dependency)}\n(?:\s+alias: .*\n)?\s+version: ).*"
    return re.sub(pattern, lambda match: f"{match[1]}{version}", chart)


def annotated(chart: str, package: str, version: Version) -> str:
    """Return a Chart.yaml whose annotation of a package, if there is one, names that version."""
    pattern = rf"(^  {re.escape(package)}: ).*$"
    return re.sub(pattern, lambda match: f"{match[1]}{version}", chart, flags=re.MULTILINE)


def release(
    packages: Sequence[str],
    wanted: str,
    artifacts: list[str],
    repository: Path,
    where: Sequence[str] = (),
) -> dict[str, Version]:
    """Make the releases, in the order of the dependencies; package → version.

    Args:
        packages: What to release.
        wanted: `major`, `minor`, `patch` or a version.
        artifacts: What to build of it, from `ARTIFACTS`.
        repository: Where everything is.
        where: Options of scripts/publication.py, if the artifacts say where they are published.

    Raises:
        ReleaseError: Nothing was changed.
    """
    check_clean(repository)
    if where:
        with tempfile.TemporaryDirectory() as empty:
            _publish("example", where, repository, f"--tree={empty}")
    versions = planned(packages, wanted, repository)
    commits: dict[str, str] = {}
    for package, version in versions.items():
        write_version(package, version, repository)
        if package != UMBRELLA:
            _fold_changelog(package, version, repository)
        _git(repository, "add", "--all")
        _git(repository, "commit", "--quiet", "-m", f"Release {package} {version}")
        _git(repository, "tag", f"{package}-v{version}")
        commits[package] = _git(repository, "rev-parse", "HEAD").strip()
    for package, version in versions.items():
        _add_row(package, version, commits[package], repository)
        write_version(package, version.opened, repository)
    run([sys.executable, "-m", "scripts.document_versions"], repository)
    _git(repository, "add", "--all")
    names = ", ".join(f"{package} {version}" for package, version in versions.items())
    message = f"docs/releases.md names the commits of releases\n\n{names}"
    _git(repository, "commit", "--quiet", "-m", message)
    for package, version in versions.items():
        tag = f"{package}-v{version}"
        print(f"✓ {tag} is {commits[package][:10]}", flush=True)
        if artifacts:
            build(package, version, tag, artifacts, repository, where)
    return versions


def planned(packages: Sequence[str], wanted: str, repository: Path) -> dict[str, Version]:
    """The version of each package, in the order of the dependencies.

    Raises:
        ReleaseError: One cannot be released, or needs another one that is not.
    """
    released = rows(repository)
    versions: dict[str, Version] = {}
    needed: set[str] = set()
    for package in packages:
        versions[package] = next_version(current_version(package, repository), wanted)
        if (package, str(versions[package])) in released:
            raise ReleaseError(f"{package} {versions[package]} is in {RELEASES} already")
        needed.update(siblings(package, repository))
    for package in packages:
        for sibling in siblings(package, repository):
            there = current_version(sibling, repository)
            if sibling not in versions and not there.is_final:
                raise ReleaseError(
                    f"{package} depends on {sibling}, of which the tree has {there}: release "
                    "both in one command"
                )
        if package != UMBRELLA:
            check_fragments(package, repository, may_be_none=package in needed)
    ordered = sorted(versions, key=lambda package: _place(package, repository))
    return {package: versions[package] for package in ordered}


def _place(package: str, repository: Path) -> tuple[int, str]:
    """What others need comes first, and the umbrella last."""
    below = siblings(package, repository)
    return max((_place(each, repository)[0] + 1 for each in below), default=0), package


def siblings(package: str, repository: Path) -> set[str]:
    """The packages of ours that a package depends on, or that its chart names."""
    found: set[str] = set()
    pyproject = repository / "packages" / package / "pyproject.toml"
    if pyproject.exists():
        found |= set(re.findall(r'"(nvdra-[a-z-]+)(?:\[[^\]]*\])?>=', pyproject.read_text()))
    chart = _chart(package, repository) / "Chart.yaml"
    if chart.exists():
        found |= set(re.findall(r"^  (?:- name: )?(nvdra-[a-z-]+)", chart.read_text(), re.M))
    return found


def build(
    package: str,
    version: Version,
    commit: str,
    artifacts: list[str],
    repository: Path,
    where: Sequence[str] = (),
) -> list[Path]:
    """Build the artifacts of a version from its commit and write them to dist/."""
    dist = repository / "dist"
    dist.mkdir(exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory(prefix="nvdra-release-") as folder:
        tree = Path(folder) / "tree"
        _git(repository, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            if where:
                _publish(commit, where, tree)
            if "wheel" in artifacts and package != UMBRELLA:
                made += _build_wheel(package, version, tree, dist)
            if "image" in artifacts and (tree / "packages" / package / "Dockerfile").exists():
                made += _build_image(package, version, tree, dist)
            if "chart" in artifacts and (_chart(package, tree) / "Chart.yaml").exists():
                made += _build_chart(package, version, tree, dist)
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))
    for path in made:
        print(f"✓ {path.relative_to(repository)}", flush=True)
    return made


def _publish(tag: str, where: Sequence[str], tree: Path, *options: str) -> None:
    """Write into a tree where it is published, with the script that it has."""
    run([sys.executable, "-m", "scripts.publication", tag, *where, *options], tree)


def _build_wheel(package: str, version: Version, tree: Path, dist: Path) -> list[Path]:
    run(["hatch", "--quiet", "build", "-t", "wheel", str(dist)], tree / "packages" / package)
    return [dist / f"{package.replace('-', '_')}-{version}-py3-none-any.whl"]


def _build_image(package: str, version: Version, tree: Path, dist: Path) -> list[Path]:
    # The lab builds the images of the tree that it stands in.
    code = tree / "e2e" / "cluster" / "src"
    simulator = tree / "e2e" / "sim" / "src"
    path = os.pathsep.join((str(code), str(simulator)))
    argv = [*LAB, "image", "build"]
    run(argv, tree, {"PYTHONPATH": path})
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = dist / f"{package}-{version}.oci.tar"
    shutil.copyfile(cache / "nvdra" / "images" / f"{package}.oci.tar", target)
    return [target]


def _build_chart(package: str, version: Version, tree: Path, dist: Path) -> list[Path]:
    run([helm(), "package", str(_chart(package, tree)), "--destination", str(dist)], tree)
    return [dist / f"{package}-{version}.tgz"]


def _chart(package: str, tree: Path) -> Path:
    """The umbrella chart, or the chart of a component, which is a part of it."""
    umbrella = tree / "charts" / UMBRELLA
    return umbrella if package == UMBRELLA else umbrella / "charts" / package


def helm() -> str:
    """The helm on PATH, or the lab's own, which is built on first use."""
    found = shutil.which("helm")
    if found is None:
        table = run([*LAB, "binaries", "helm"], REPOSITORY)
        found = next(line.split()[1] for line in table.splitlines() if line.split()[:1] == ["helm"])
    return found


def check_clean(repository: Path) -> None:
    """Check that everything is committed.

    Raises:
        ReleaseError: Something is not.
    """
    changes = _git(repository, "status", "--porcelain")
    if changes:
        raise ReleaseError(f"the tree has changes that are not committed:\n{changes.rstrip()}")


def _about(package: str, repository: Path) -> Path | None:
    """The file with the package's version; None for the umbrella chart."""
    if package == UMBRELLA:
        return None
    found = sorted((repository / "packages" / package).glob("src/*/__about__.py"))
    if not found:
        known = sorted(path.name for path in (repository / "packages").iterdir())
        raise ReleaseError(f"there is no package {package}; known: {', '.join(known)}, {UMBRELLA}")
    return found[0]


def current_version(package: str, repository: Path) -> Version:
    """The version that the tree has of a package or of the umbrella chart.

    Raises:
        ReleaseError: There is no such package.
    """
    about = _about(package, repository)
    if about is not None:
        match = _ABOUT.search(about.read_text())
    else:
        chart = _chart(package, repository) / "Chart.yaml"
        match = re.search(r"^version: (.*)$", chart.read_text(), re.MULTILINE)
    assert match is not None
    return Version.parse(match[1])


def check_fragments(package: str, repository: Path, *, may_be_none: bool = False) -> None:
    """Check that a package has fragments of a changelog, and that none would be dropped.

    Args:
        package: Its name.
        repository: Where it is.
        may_be_none: Another package that is released needs it.

    Raises:
        ReleaseError: It has none, or one has another name.
    """
    folder = repository / "packages" / package / "changes.d"
    names = sorted(path.name for path in folder.glob("*.md"))
    wrong = [name for name in names if not _FRAGMENT.match(name)]
    if wrong:
        raise ReleaseError(
            f"{', '.join(wrong)} in {folder.relative_to(repository)} would be dropped in silence: "
            "name it <two_words>.<added|changed|deprecated|removed|fixed|security>.md"
        )
    if not names and not may_be_none:
        raise ReleaseError(
            f"{folder.relative_to(repository)} is empty: write what the person who upgrades notices"
        )


def write_version(package: str, version: Version, repository: Path) -> None:
    """Write a version in the package, its chart and what depends on them."""
    about = _about(package, repository)
    if about is not None:
        about.write_text(_ABOUT.sub(f'__version__ = "{version.of_wheel}"', about.read_text()))
        for file in _chart(UMBRELLA, repository).rglob("Chart.yaml"):
            file.write_text(annotated(file.read_text(), package, version))
        _widen_ranges(package, version, repository)
    chart = _chart(package, repository) / "Chart.yaml"
    if not chart.exists():
        return
    chart.write_text(chart_with(chart.read_text(), version))
    umbrella = _chart(UMBRELLA, repository) / "Chart.yaml"
    umbrella.write_text(chart_depending_on(umbrella.read_text(), package, version))


def _fold_changelog(package: str, version: Version, repository: Path) -> None:
    today = datetime.now(UTC).date().isoformat()
    folder = repository / "packages" / package
    _assemble(folder, version, today, "--yes")
    path = folder / "CHANGELOG.md"
    path.write_text(without_names(path.read_text()))


def next_entry(package: str, repository: Path) -> str:
    """The entry that the changelog gets with the next release; empty if nothing waits for it.

    Raises:
        ReleaseError: A fragment would be dropped.
    """
    check_fragments(package, repository, may_be_none=True)
    folder = repository / "packages" / package
    if not any((folder / "changes.d").glob("*.md")):
        return ""
    version = current_version(package, repository).final
    return without_names(_assemble(folder, version, "not released yet", "--draft"))


def without_names(changelog: str) -> str:
    """Return a changelog without the names of fragments that are no numbers of issues."""
    return _NAME_OF_FRAGMENT.sub("", changelog)


def _assemble(folder: Path, version: Version, date: str, mode: str) -> str:
    return run(["towncrier", "build", mode, "--version", str(version), "--date", date], folder)


def _widen_ranges(package: str, version: Version, repository: Path) -> None:
    for pyproject in (repository / "packages").glob("*/pyproject.toml"):
        text = pyproject.read_text()
        pyproject.write_text(widened(text, package, version))


def rows(repository: Path) -> set[tuple[str, str]]:
    """Package and version of each release so far."""
    path = repository / RELEASES
    text = path.read_text() if path.exists() else ""
    found = re.findall(r"^\| ([\w-]+) \| (\d+\.\d+\.\d+) \|", text, re.MULTILINE)
    return {(package, version) for package, version in found}


def waiting_row(package: str) -> str:
    """The row of a package that has no release."""
    return f"| {package} | - | not released yet | - |\n"


def _add_row(package: str, version: Version, commit: str, repository: Path) -> None:
    path = repository / RELEASES
    text = path.read_text() if path.exists() else _FIRST_LINES
    text = text.replace(waiting_row(package), "")
    today = datetime.now(UTC).date().isoformat()
    path.write_text(f"{text}| {package} | {version} | {today} | {commit} |\n")


def _git(repository: Path, *arguments: str) -> str:
    return run(["git", *arguments], repository)


def run(argv: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program to its end and return its output.

    Raises:
        ReleaseError: It failed; the text has what it said.
    """
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ReleaseError(f"{' '.join(argv[:3])} failed in {folder}: {said}")
    return done.stdout


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        description="Release packages: version, changelog, commit, tag, wheel, image, chart.",
        epilog="example: python scripts/release.py nvdra-cdi minor --artifacts wheel",
    )
    parser.add_argument(
        "packages",
        nargs="+",
        metavar="package",
        help="a package such as nvdra-cdi, or nvdra: the umbrella chart",
    )
    parser.add_argument("version", help="major, minor, patch, or the version itself")
    parser.add_argument(
        "--artifacts",
        default="",
        help=f"what to build of it into dist/, from {','.join(ARTIFACTS)} (default: nothing)",
    )
    parser.add_argument(
        "--repository", default="", help="web page of the repository, which wheels and charts name"
    )
    parser.add_argument(
        "--registry", default="", help="where images are published, HOST/OWNER, which charts name"
    )
    arguments = parser.parse_args()
    if bool(arguments.repository) != bool(arguments.registry):
        parser.error("--repository and --registry are given together, or neither")
    named = (f"--repository={arguments.repository}", f"--registry={arguments.registry}")
    where = named if arguments.repository else ()
    artifacts = [name for name in arguments.artifacts.split(",") if name]
    unknown = sorted(set(artifacts) - set(ARTIFACTS))
    if unknown:
        parser.error(f"--artifacts: {', '.join(unknown)} is none of {', '.join(ARTIFACTS)}")
    try:
        release(arguments.packages, arguments.version, artifacts, REPOSITORY, where)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
