# SPDX-License-Identifier: Apache-2.0
"""The workflows in .github, and the plan of a release; actionlint has a test of its own."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import release, release_plan
from scripts.release import Version
from scripts.release_plan import TagError

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
"""By commit, and the version that dependabot and people read."""
TARGET = re.compile(r"(?:^|&& )make ([\w./-]+)", re.MULTILINE)


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


RELEASE = ROOT / ".github" / "workflows" / "release.yml"


@pytest.mark.parametrize("job", ["wheel", "chart"])
def test_what_is_published_says_where_before_it_is_built(job: str, tmp_path: Path) -> None:
    """The step is run in a copy, as the workflow runs it."""
    jobs = load(RELEASE)["jobs"]
    commands = [step.get("run", "") for step in jobs[job]["steps"]]
    (at,) = (at for at, command in enumerate(commands) if "scripts.publication" in command)
    built = {"wheel": "hatch build", "chart": "helm package"}[job]
    assert [number for number, command in enumerate(commands) if command.startswith(built)] == [
        at + 1
    ]
    ignored = shutil.ignore_patterns("src", "tests", "__pycache__")
    for name in ("charts", "packages", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    given = {"REGISTRY": "ghcr.io/owner", "GITHUB_REF_NAME": "nvdra-v1.2.3"}
    environment = {**os.environ, "PAGE": "https://github.com/Owner/nvdra", **given}
    subprocess.run(["bash", "-ec", commands[at]], env=environment, cwd=tmp_path, check=True)
    values = load(tmp_path / "charts/nvdra/values.yaml")
    assert values["global"]["imageRegistry"] == "ghcr.io/owner"
    assert "Homepage" in (tmp_path / "packages/nvdra-cdi/pyproject.toml").read_text()


def test_the_addresses_of_a_release_are_those_of_the_repository_that_the_workflow_runs_in() -> None:
    assert load(RELEASE)["env"]["PAGE"] == "${{ github.server_url }}/${{ github.repository }}"
    jobs = load(RELEASE)["jobs"]
    registries = [
        {**job.get("env", {}), **step.get("env", {})}["REGISTRY"]
        for job in jobs.values()
        for step in job["steps"]
        if "$REGISTRY" in step.get("run", "")
    ]
    assert set(registries) == {"${{ needs.plan.outputs.registry }}"}
    assert len(registries) == 4


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in load(path)["jobs"].values():
        yield from job["steps"]


def name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_every_action_is_pinned(path: Path) -> None:
    used = [line for line in path.read_text().splitlines() if "uses: " in line]
    assert len(used) == len([step for step in steps(path) if "uses" in step]) > 0
    assert [line.strip() for line in used if not PINNED.search(line)] == []


def test_one_action_has_one_commit() -> None:
    used = {
        line.split("uses: ")[1]
        for path in WORKFLOWS
        for line in path.read_text().splitlines()
        if "uses: " in line
    }
    assert len({each.partition("@")[0] for each in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_no_step_finds_the_token_of_a_checkout(path: Path) -> None:
    checkouts = [
        step for step in steps(path) if step.get("uses", "").startswith("actions/checkout")
    ]
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


def zizmor(folder: Path) -> "subprocess.CompletedProcess[str]":
    argv = ["zizmor", "--offline", "--no-progress", "--color=never", "--format=plain", str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_zizmor_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    done = zizmor(ROOT / ".github")
    assert done.returncode == 0, done.stdout
    # It looks: the same file with a tag for a commit is named.
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    text = (WORKFLOWS[0].parent / "check.yml").read_text()
    (workflows / "check.yml").write_text(re.sub(r"checkout@\w+ # .*", "checkout@v4", text))
    done = zizmor(tmp_path / ".github")
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_a_job_may_read_the_code_and_nothing_else_unless_it_says_so(path: Path) -> None:
    assert load(path)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_every_job_has_an_end(path: Path) -> None:
    jobs = load(path)["jobs"]
    assert [job for job, each in jobs.items() if "timeout-minutes" not in each] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_its_make_targets_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [step["run"] for step in steps(path) if "run" in step]
    wanted = {target for command in commands for target in TARGET.findall(command)}
    assert [each for each in wanted if not re.search(rf"^{re.escape(each)}:", makefile, re.M)] == []


@pytest.mark.parametrize(
    ("package", "wheel", "image", "chart"),
    [
        ("nvdra-gpu-plugin", True, True, "charts/nvdra/charts/nvdra-gpu-plugin"),
        ("nvdra-imex-daemon", True, True, ""),
        ("nvdra-cdi", True, False, ""),
        ("nvdra", False, False, "charts/nvdra"),
    ],
)
def test_a_tag_publishes_what_its_package_has(
    package: str, wheel: bool, image: bool, chart: str, tmp_path: Path
) -> None:
    files = ("packages/*/*", "packages/*/src/*/__about__.py", "charts/nvdra/**/Chart.yaml")
    for source in (file for pattern in files for file in ROOT.glob(pattern) if file.is_file()):
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    release.write_version(package, Version(9, 8, 7), tmp_path)
    version = tree_version(package, tmp_path)
    assert version == "9.8.7"
    assert release_plan.plan(f"{package}-v{version}", tmp_path) == {
        "package": package,
        "version": version,
        "wheel": str(wheel).lower(),
        "image": str(image).lower(),
        "chart": chart,
    }


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("nvdra-cdi-v999.0.0", "says"),
        ("nvdra-nothing-v0.1.0", "there is no package nvdra-nothing"),
        ("v0.1.0", "is no tag"),
        ("nvdra-cdi-v0.1", "is no tag"),
        ("nvdra-cdi-v0.1.0-rc1", "is no tag"),
    ],
)
def test_a_tag_that_names_nothing_of_this_tree_is_refused(tag: str, text: str) -> None:
    with pytest.raises(TagError, match=text):
        release_plan.plan(tag, ROOT)


def test_the_notes_of_a_release_are_the_entry_of_its_changelog_alone(tmp_path: Path) -> None:
    folder = tmp_path / "packages" / "nvdra-cdi"
    folder.mkdir(parents=True)
    (folder / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.2.0 (2027-01-01)\n\n### Added\n\n- New.\n\n"
        "## 0.1.0 (2026-11-23)\n\n- Old.\n"
    )
    assert release_plan.notes("nvdra-cdi", "0.2.0", tmp_path) == "### Added\n\n- New.\n"
    assert release_plan.notes("nvdra-cdi", "0.1.0", tmp_path) == "- Old.\n"


def test_the_notes_of_the_umbrella_chart_name_its_parts() -> None:
    parts = release_plan.notes("nvdra", tree_version("nvdra", ROOT), ROOT).splitlines()
    assert {part.split()[1] for part in parts} == {
        "nvdra-gpu-plugin",
        "nvdra-cd-plugin",
        "nvdra-cd-controller",
        "nvdra-webhook",
    }


@pytest.mark.parametrize("package", ["nvdra-gpu-plugin", "nvdra-imex-daemon", "nvdra"])
def test_no_tag_publishes_a_tree_between_releases(package: str) -> None:
    version = tree_version(package, ROOT)
    for tag in (version, version.removesuffix("-dev").removesuffix(".dev0")):
        with pytest.raises(TagError):
            release_plan.plan(f"{package}-v{tag}", ROOT)


def tree_version(package: str, tree: Path) -> str:
    """The version in the tree, read in another way than the script does."""
    abouts = [*(tree / "packages" / package).glob("src/*/__about__.py")]
    if abouts:
        return abouts[0].read_text().split('"')[-2]
    chart: dict[str, str] = yaml.safe_load((tree / "charts" / package / "Chart.yaml").read_text())
    return chart["version"]
