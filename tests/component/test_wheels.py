"""Each package's wheel, installed and run outside of the repository, as with pip."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def run(*command: str | Path, cwd: Path, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        run("hatch", "build", "-t", "wheel", directory, cwd=ROOT / "packages" / package)
    return directory


def installed(directory: Path, wheels: Path, *requirements: str) -> Path:
    """Install these requirements in a new environment, and return its `bin`."""
    run("uv", "venv", "--python", sys.executable, directory / "venv", cwd=directory)
    python = directory / "venv/bin/python"
    where = ("--find-links", wheels, "--python", python)
    run("uv", "pip", "install", *where, *requirements, cwd=directory)
    return directory / "venv/bin"


def test_every_package_builds_one_wheel(wheels: Path) -> None:
    found = sorted(path.name.split("-")[0] for path in wheels.glob("*.whl"))
    assert found == [package.replace("-", "_") for package in PACKAGES]


def test_the_plugin_runs_from_its_wheel_alone(wheels: Path, tmp_path: Path) -> None:
    program = installed(tmp_path, wheels, "nvdra-gpu-plugin") / "nvdra-gpu-plugin"
    assert run(program, "--version", cwd=tmp_path) == "nvdra-gpu-plugin 0.1.0\n"
    assert "--node-name" in run(program, "--help", cwd=tmp_path)


def test_the_cdi_package_needs_nothing_of_ours(wheels: Path, tmp_path: Path) -> None:
    python = installed(tmp_path, wheels, "nvdra-cdi") / "python"
    run(
        python, "-c", "from nvdra_cdi import codec; import nvdra_cdi.nvidia.generator", cwd=tmp_path
    )
    assert "nvdra-api" not in run("uv", "pip", "freeze", "--python", python, cwd=tmp_path)


def test_the_migration_brings_no_framework_along(wheels: Path, tmp_path: Path) -> None:
    program = installed(tmp_path, wheels, "nvdra-migrate") / "nvdra-migrate"
    old = tmp_path / "old.yaml"
    old.write_text("nvidiaDriverRoot: /run/nvidia/driver\n")
    new = run(program, "values", old, cwd=tmp_path)
    assert new == "global:\n  nvidiaDriverRoot: /run/nvidia/driver\n"
    packages = run("uv", "pip", "freeze", "--python", program.parent / "python", cwd=tmp_path)
    assert not {"grpcio", "kubernetes", "aiohttp"} & {
        line.partition("==")[0] for line in packages.splitlines()
    }
