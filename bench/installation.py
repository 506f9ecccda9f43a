# SPDX-License-Identifier: Apache-2.0
"""Installs the plugin as a user does: wheels in a virtual environment."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.artifacts import image_context
from nvdra_lab.environment import Environment
from nvdra_testing import releases
from nvdra_testing.releases import Release

PLUGIN, WEBHOOK = "nvdra-gpu-plugin", "nvdra-webhook"
PACKAGES = {
    PLUGIN: ("nvdra-api", "nvdra-cdi", PLUGIN),
    WEBHOOK: ("nvdra-api", WEBHOOK),
}
"""The wheels that each program needs."""


def program(environment: Environment, name: str = PLUGIN) -> Path:
    """Install a program from wheels of the checkout. Returns its path.

    Raises:
        LabError: A program failed; the message has its output.
    """
    return _install(environment, environment.repository, "checkout", name)


def released_program(environment: Environment) -> tuple[Path, str]:
    """Install the plugin's latest release. Returns the path of its program, and the version.

    Raises:
        LabError: A program failed; the message has its output.
    """
    release = releases.latest(PLUGIN)
    return _install_commit(environment, release), release.version


def program_of(environment: Environment, commit: str, name: str = PLUGIN) -> Path:
    """Install a program of an earlier commit. Returns its path.

    Raises:
        LabError: A program failed; the message has its output.
    """
    return _install_commit(environment, Release(name, commit, commit))


def _install_commit(environment: Environment, release: Release) -> Path:
    with tempfile.TemporaryDirectory() as folder, releases.checkout(release, Path(folder)) as tree:
        return _install(environment, tree, release.version, release.package)


def _install(environment: Environment, tree: Path, label: str, name: str) -> Path:
    """Install a program from wheels of a tree.

    The environment is in the build cache and is reused until the wheels or the lock file change.
    Byte code is compiled, as in the image. Versions of dependencies are those of the checkout.
    """
    path = f"{environment.repository / '.tools/bin'}:{environment.path}"
    uv = shutil.which("uv", path=path) or "uv"
    lock = environment.repository / "requirements.lock"
    with tempfile.TemporaryDirectory() as directory:
        ours = Path(directory)
        folders = [tree / "packages" / package for package in PACKAGES[name]]
        image_context.build_wheels(environment, folders, ours)
        built = sorted(ours.glob("*.whl"))
        digest = _digest([lock, *built], environment.python)
        target = environment.cache.root / "bench" / f"{name}-{label}" / digest
        if not (target / "complete").exists():
            shutil.rmtree(target.parent, ignore_errors=True)
            subprocesses.run([uv, "venv", "--quiet", "--python", environment.python, target])
            python = f"--python={target / 'bin/python'}"
            install = [uv, "pip", "install", "--quiet", "--compile-bytecode", python]
            subprocesses.run(
                [*install, *built], env={**environment.variables, "UV_CONSTRAINT": str(lock)}
            )
            (target / "complete").touch()
    return target / "bin" / name


def _digest(files: list[Path], python: str) -> str:
    digest = hashlib.sha256(python.encode())
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
