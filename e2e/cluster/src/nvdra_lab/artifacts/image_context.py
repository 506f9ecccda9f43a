# SPDX-License-Identifier: Apache-2.0
"""Makes the build context of the project's images, for buildah, docker or any other builder.

    wheels/          all dependencies, for the base image's Python and this machine's architecture
    own-wheels/      the packages themselves
    requirements/    for each package, what is installed in its image, each with its hash; in
                     shared.txt, what all these images have of packages that are not ours
    images/          what assembles an image
    nvidia-cdi-hook

Dependencies have the versions and hashes of requirements.images.lock. The packages' own wheels are
built from the tree, and their hashes are taken here. A build step in a container needs no network,
but for kmod where the base image lacks it (`images/modprobe.py`).
"""

import platform
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError

# Tags that pip accepts for a C library as old as that of the oldest base, newest first.
GLIBC_TAGS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
REQUIREMENT = re.compile(r"^\S.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
PIN = re.compile(r"^([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)


def make(
    environment: Environment,
    context: Path,
    packages: Sequence[str],
    python: str,
    hook: Path,
    tree: Path | None = None,
) -> None:
    """Fill a folder with what the images of some packages are built from.

    Args:
        environment: Where the checkout and the tools are.
        context: The folder, which is made.
        packages: Those whose images are built. Images share a layer only if their contexts are
            for the same packages.
        python: The version of the base image's Python, "3.12".
        hook: nvidia-cdi-hook.
        tree: Where packages/ is, if not in the checkout: a release's tree, for its images.

    Raises:
        LabError: A program failed, or a wheel is not one that the lock file names.
    """
    repository = environment.repository
    folder = (tree or repository) / "packages"
    lock = read_pins((repository / "requirements.images.lock").read_text())
    wheels, requirements = context / "wheels", context / "requirements"
    requirements.mkdir(parents=True)
    ours = sorted({name for package in packages for name in closure(folder, package)})
    build_wheels(environment, [folder / name for name in ours], wheels)
    tools = repository / "requirements.images.in"
    own = sorted(wheels.glob("*.whl"))
    _download(environment, wheels, [*map(str, own), f"--requirement={tools}"], python, lock)
    wanted = {package: package for package in packages}
    installed = {}
    for name, lines in {**wanted, "tools": tools.read_text()}.items():
        installed[name] = _installed(environment, wheels, lines, python)
        check_hashes(installed[name], lock, ours)
    installed["shared"] = shared_requirements([installed[name] for name in packages], ours)
    for name, text in installed.items():
        (requirements / f"{name}.txt").write_text(text)
    ignored = shutil.ignore_patterns("__pycache__")
    own_wheels = context / "own-wheels"
    own_wheels.mkdir()
    for wheel in own:
        wheel.rename(own_wheels / wheel.name)
    shutil.copytree(repository / "images", context / "images", ignore=ignored)
    shutil.copy(hook, context / hook.name)


def build_wheels(environment: Environment, packages: Sequence[Path], target: Path) -> None:
    """Build the wheels of packages of ours into `target`."""
    for package in packages:
        _run(environment, "uv", "build", "--quiet", "--wheel", f"--out-dir={target}", package)
    (target / ".gitignore").unlink(missing_ok=True)


def closure(packages: Path, name: str) -> set[str]:
    """A package of ours with all packages of ours that it depends on, from pyproject.toml."""
    found: set[str] = set()
    left = [name]
    while left:
        package = left.pop()
        found.add(package)
        project = tomllib.loads((packages / package / "pyproject.toml").read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        lines = [*project.get("dependencies", ()), *(line for extra in extras for line in extra)]
        needed = {match[0] for line in lines if (match := re.match(r"[\w-]+", line))}
        left += [each for each in needed - found if (packages / each).is_dir()]
    return found


def read_pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → version and the hashes of its files, from a file of pinned requirements."""
    lines = re.sub(r"( ;[^\\\n]*)?\s*\\\n\s*", " ", lock)
    return {
        name: (version, frozenset(re.findall(r"sha256:([0-9a-f]{64})", hashes)))
        for name, version, hashes in PIN.findall(lines)
    }


def _download(
    environment: Environment,
    wheels: Path,
    wanted: Sequence[str],
    python: str,
    lock: Mapping[str, tuple[str, frozenset[str]]],
) -> None:
    """Download all dependencies for the base image's Python and this machine's architecture."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={version}\n" for name, (version, _) in lock.items())
        constraints.flush()
        _run(
            environment,
            *("pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={python}"),
            *(f"--platform={tag}_{platform.machine()}" for tag in GLIBC_TAGS),
            *(f"--find-links={wheels}", f"--constraint={constraints.name}", f"--dest={wheels}"),
            *wanted,
        )


def _installed(environment: Environment, wheels: Path, wanted: str, python: str) -> str:
    """What is installed for some requirements: each pinned, with the hash of its wheel."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.in"
        file.write_text(wanted)
        return _run(
            environment,
            *(
                "uv",
                "pip",
                "compile",
                "--quiet",
                "--no-config",
                "--no-index",
                "--only-binary=:all:",
            ),
            *(f"--find-links={wheels}", "--generate-hashes", "--no-header", "--no-annotate"),
            *(f"--python-version={python}", f"--python-platform={_target()}", file),
        )


def _target() -> str:
    return f"{platform.machine()}-{GLIBC_TAGS[0]}"


def check_hashes(
    installed: str, lock: Mapping[str, tuple[str, frozenset[str]]], ours: Sequence[str]
) -> None:
    """Check that each wheel of others is a file that the lock names.

    Raises:
        LabError: One is not.
    """
    for name, (version, hashes) in read_pins(installed).items():
        locked_version, locked = lock.get(name, ("", frozenset()))
        if name not in ours and not (version == locked_version and hashes <= locked):
            raise LabError(
                f"the wheel of {name} {version} is not one that requirements.images.lock names: "
                "another file was served in its place, or it is new and `make lock` must be run"
            )


def shared_requirements(lists: Iterable[str], ours: Iterable[str]) -> str:
    """What several lists of pinned requirements all have, except packages of ours."""
    common = set.intersection(*(set(REQUIREMENT.findall(text)) for text in lists))
    return "".join(sorted(each for each in common if each.partition("==")[0] not in ours))


def _run(environment: Environment, name: str, *arguments: str | Path) -> str:
    """Run a tool. Images have the versions of their own lock, not of UV_CONSTRAINT."""
    path = f"{environment.repository / '.tools/bin'}:{environment.path}"
    program = shutil.which(name, path=path)
    if program is None:
        raise LabError(f"{name} is not on PATH: run this through make, or put .tools/bin on PATH")
    variables = {key: each for key, each in environment.variables.items() if key != "UV_CONSTRAINT"}
    return subprocesses.run([program, *arguments], env=variables)
