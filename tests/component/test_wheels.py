# SPDX-License-Identifier: Apache-2.0
"""Each package as it would be released now, installed alone from wheels and run.

A component is imported and its commands are run; then its own component tests run against the
program of that environment, as a process with a real API server and simulated hardware.

What waits in changes.d is released in a clone. Then each package is installed in an empty
environment with the oldest and with the newest nvdra-api and nvdra-cdi that its ranges admit. An
older version is built from the commit that docs/releases.md names. Nothing is asked of an index:
other wheels are those that the environment of the tests was made from.
"""

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from nvdra_testing import programs as programs_elsewhere
from nvdra_testing import releases

from scripts import release, release_check, release_rehearsal, sibling_matrix
from scripts.sibling_matrix import Combination

ROOT = Path(__file__).parents[2]
PACKAGES = release_rehearsal.packages(ROOT)
IN_EVERY_RUN = ("nvdra-cdi", "nvdra-gpu-plugin")
SERVES = {
    "nvdra-gpu-plugin": "test_prepare.py",
    "nvdra-cd-plugin": "test_channels.py",
    "nvdra-cd-controller": "test_domain_lifecycle.py",
    "nvdra-imex-daemon": "test_rack_join.py",
    "nvdra-webhook": "test_certificate_files.py",
}
"""The component tests of what a component is for."""
IMPORT_ALL = """
import importlib, pkgutil, sys

for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class InstallationError(Exception):
    """What uv said."""


class Released:
    """The clone in which everything is released, and the wheels of every version."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.made = release_rehearsal.rehearse(folder)
        release_rehearsal.publish(self.clone, self.made)
        self.known = release_check.known_versions(self.clone)
        self.wheels = folder / "wheels"
        for package in PACKAGES:
            self.build(self.clone, package)

    def build(self, tree: Path, package: str) -> None:
        """Build the wheel of a package in a tree."""
        run(
            "uv",
            "build",
            "--quiet",
            "--wheel",
            f"--out-dir={self.wheels}",
            tree / "packages" / package,
        )

    def add_former(self, package: str) -> str:
        """Build the wheel of a package's latest release before this state; returns the version."""
        former = releases.latest(package)
        with releases.checkout(former, self.wheels.parent) as tree:
            self.build(tree, package)
        return former.version


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return Released(tmp_path_factory.mktemp("released"))


def run(
    *argv: str | Path, check: bool = True, **variables: str
) -> "subprocess.CompletedProcess[str]":
    # Compiling all of a new environment takes longer than what is run in it.
    variables = {**os.environ, "UV_COMPILE_BYTECODE": "0", **variables}
    variables["UV_CONSTRAINT"] = str(ROOT / "requirements.lock")
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def install(released: Released, folder: Path, *requirements: str) -> Path:
    """Install requirements in a new environment; returns its `bin`.

    Raises:
        InstallationError: They cannot be installed together.
    """
    programs = folder / "environment/bin"
    python = programs / "python"
    run("uv", "venv", "--quiet", "--python", sys.executable, programs.parent)
    where = ["--offline", f"--find-links={released.wheels}", f"--python={python}"]
    done = run("uv", "pip", "install", "--quiet", *where, *requirements, check=False)
    if done.returncode:
        raise InstallationError(done.stderr)
    return programs


def names_installed(programs: Path) -> set[str]:
    """The names of the distributions in an environment."""
    lines = run("uv", "pip", "freeze", f"--python={programs / 'python'}").stdout.splitlines()
    return {re.split(r"==| @ ", line)[0] for line in lines}


def try_out(released: Released, combination: Combination, folder: Path) -> str:
    """Install a combination, import all of it and run its programs; what failed, or nothing."""
    component = combination.component
    version = release.current_version(component, released.clone)
    pins = [
        f"{component}=={version}",
        *(f"{name}=={there}" for name, there in combination.siblings),
    ]
    try:
        programs = install(released, folder, *pins)
    except InstallationError as error:
        return str(error)
    project = tomllib.loads((ROOT / "packages" / component / "pyproject.toml").read_text())
    own = [path.parent.name for path in (ROOT / "packages" / component).glob("src/*/__init__.py")]
    # nvdra_runtime needs an extra for each of its parts; the components import what they use of it.
    tried: list[list[str | Path]] = [
        [programs / "python", "-c", IMPORT_ALL, *(name for name in own if name != "nvdra_runtime")]
    ]
    for program in project["project"].get("scripts", {}):
        if program == component:
            tried += [[programs / program, each] for each in ("--version", "--help")]
    for argv in tried:
        done = run(*argv, check=False)
        if done.returncode:
            return f"{combination}: {done.stderr}"
        if argv[-1] == "--version" and str(version) not in done.stdout:
            return f"{combination}: --version says {done.stdout}"
    for path in sorted(programs.glob("nvdra-*")):
        done = run(path, "--help", check=False)
        if done.returncode and not done.stderr.startswith("Error: "):
            return f"{combination}: {path.name} --help: {done.stderr}"
    return serve(component, programs) if component in SERVES else ""


def serve(component: str, programs: Path) -> str:
    """Run a component's tests with the program of an environment; what failed, or nothing."""
    tests = ROOT / "packages" / component / "tests/component" / SERVES[component]
    where = {programs_elsewhere.VARIABLE: str(programs)}
    argv = (sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:randomly", tests)
    done = run(*argv, check=False, **where)
    return "" if done.returncode == 0 else done.stdout[-5000:] + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "component",
    [
        name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.soak)
        for name in PACKAGES
    ],
)
def test_a_package_works_alone_with_the_oldest_and_the_newest_siblings_that_it_admits(
    released: Released, component: str, tmp_path: Path
) -> None:
    pyproject = released.clone / "packages" / component / "pyproject.toml"
    ranges = sibling_matrix.ranges(pyproject)
    for index, combination in enumerate(
        sibling_matrix.combinations(component, ranges, released.known)
    ):
        for sibling, version in combination.siblings:
            if version != str(release.current_version(sibling, released.clone)):
                assert released.add_former(sibling) == version
        folder = tmp_path / str(index)
        assert try_out(released, combination, folder) == "", combination


@pytest.mark.timeout(300)
def test_a_range_that_admits_a_sibling_without_what_is_needed_is_noticed(
    released: Released, tmp_path: Path
) -> None:
    """The framework of nvdra-api 0.1.0 lacks modules that today's controller imports."""
    component = "nvdra-cd-controller"
    pyproject = released.clone / "packages" / component / "pyproject.toml"
    there = pyproject.read_text()
    pyproject.write_text(re.sub(r"(nvdra-api\[[^]]*\])>=[\d.]+,", r"\1>=0.1,", there))
    ranges = sibling_matrix.ranges(pyproject)
    oldest, newest = sibling_matrix.combinations(component, ranges, released.known)
    former = released.add_former("nvdra-api")
    assert oldest.siblings == (("nvdra-api", former),)
    released.build(released.clone, component)
    assert "Error" in try_out(released, oldest, tmp_path / "oldest")
    assert try_out(released, newest, tmp_path / "newest") == ""


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_says_what_it_is_and_where_it_comes_from(released: Released, package: str) -> None:
    (wheel,) = released.wheels.glob(f"{package.replace('-', '_')}-{released.made[package]}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(name))
        assert f"{name.removesuffix('METADATA')}licenses/LICENSE" in archive.namelist()
    page, _ = release_rehearsal.EXAMPLE
    urls = dict(each.split(", ") for each in told.get_all("Project-URL", []))
    assert urls["Homepage"] == page
    assert urls["Changelog"].endswith(f"/packages/{package}/CHANGELOG.md")
    assert told["License-Expression"] == "Apache-2.0"
    assert "Programming Language :: Python :: 3.14" in told.get_all("Classifier", [])
    text = told.get_payload()
    assert isinstance(text, str)
    assert text.startswith(f"# {package}\n")
    # A relative link leads nowhere on the page of an index.
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []


def test_the_cdi_package_needs_nothing_of_ours(released: Released, tmp_path: Path) -> None:
    programs = install(released, tmp_path, "nvdra-cdi")
    assert {each for each in names_installed(programs) if each.startswith("nvdra")} == {"nvdra-cdi"}


def test_the_migration_brings_no_framework_along(released: Released, tmp_path: Path) -> None:
    programs = install(released, tmp_path, "nvdra-migrate")
    old = tmp_path / "old.yaml"
    old.write_text("nvidiaDriverRoot: /run/nvidia/driver\n")
    new = run(programs / "nvdra-migrate", "values", old).stdout
    assert new == "global:\n  nvidiaDriverRoot: /run/nvidia/driver\n"
    assert not {"grpcio", "kubernetes", "aiohttp"} & names_installed(programs)


CHECKED = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]["check"]


@pytest.mark.soak("asks the package index")
@pytest.mark.parametrize("python", CHECKED["strategy"]["matrix"]["python"])
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_the_lock_has_a_wheel_of_everything_for_each_python(
    python: str, architecture: str, tmp_path: Path
) -> None:
    """Of the versions that the classifiers name, this machine may have none but its own."""
    done = subprocess.run(
        [
            *("uv", "pip", "install", "--dry-run", f"--target={tmp_path}", "--only-binary=:all:"),
            *(f"--python-platform={architecture}-manylinux_2_28", f"--python-version={python}"),
            *("-r", ROOT / "requirements.lock"),
        ],
        env={name: text for name, text in os.environ.items() if name != "UV_CONSTRAINT"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pydantic-core" in done.stderr


@pytest.mark.soak("asks the package index")
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_every_package_of_the_images_is_a_wheel_for_each_architecture(
    architecture: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *("uv", "pip", "install", "--dry-run", f"--target={tmp_path}", "--require-hashes"),
            *("--only-binary=:all:", f"--python-platform={architecture}-manylinux_2_28"),
            *("--python-version=3.12", "-r", ROOT / "requirements.images.lock"),
        ],
        env={name: text for name, text in os.environ.items() if name != "UV_CONSTRAINT"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "grpcio" in done.stderr
