"""The labs of this machine: their folders and what was decided for each. Effects: files."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from nvdra_lab import removal
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.layout import LabDir
from nvdra_lab.model import Lab, check_name
from nvdra_lab.mounts import mount_points


def folder(environment: Environment, name: str) -> LabDir:
    """The folder of a lab, whether it exists or not."""
    return LabDir(environment.state / name)


def load(environment: Environment, name: str) -> Lab | None:
    """A lab that was begun and not taken down, or None."""
    try:
        return Lab.model_validate_json(folder(environment, name).lab_file.read_text())
    except FileNotFoundError:
        return None


def required(environment: Environment, name: str) -> Lab:
    """A lab that must be there.

    Raises:
        LabError: It is not.
    """
    lab = load(environment, name)
    if lab is None:
        others = ", ".join(other.name for other in every(environment)) or "none"
        whose = "" if environment.is_root else ", of yours: those of root are for root"
        raise LabError(f"there is no lab {name!r} (labs: {others}{whose}); start one: lab up")
    return lab


def every(environment: Environment) -> list[Lab]:
    """All labs of this user, by name."""
    if not environment.state.is_dir():
        return []
    labs = (load(environment, path.name) for path in sorted(environment.state.iterdir()))
    return [lab for lab in labs if lab is not None]


def save(environment: Environment, lab: Lab, kernel_settings: dict[str, str]) -> LabDir:
    """Begin a lab: its folder, the kernel's settings before it, and what was decided.

    `lab.json` comes last and whole: a folder without it is one in which nothing has begun.
    """
    where = folder(environment, lab.name)
    where.root.mkdir(parents=True, mode=0o700)
    where.kernel_file.write_text(json.dumps(kernel_settings))
    unfinished = where.lab_file.with_suffix(".new")
    unfinished.write_text(lab.model_dump_json(indent=1))
    unfinished.rename(where.lab_file)
    return where


def kernel_settings(where: LabDir) -> dict[str, str]:
    """The kernel's settings before that lab; none when it never came so far."""
    try:
        settings: dict[str, str] = json.loads(where.kernel_file.read_text())
    except FileNotFoundError:
        return {}
    return settings


def remove(environment: Environment, name: str) -> None:
    """Remove a lab's folder, and the folder of all labs with the last one.

    What was decided goes last, so that a removal that is interrupted can be taken up again.

    Raises:
        LabError: The name is none, or something is still mounted below the folder; removing would
            reach elsewhere.
    """
    check_name(name)
    root = folder(environment, name).root
    mounted = [point for point in mount_points() if Path(point).is_relative_to(root)]
    if mounted:
        raise LabError(f"still mounted below {root}: {', '.join(sorted(mounted))}")
    for part in (folder(environment, name).machines, root):
        if part.exists():
            removal.tree(part)
    with contextlib.suppress(OSError):
        environment.state.rmdir()


@contextlib.contextmanager
def locked(environment: Environment) -> Iterator[None]:
    """One `lab` at a time chooses addresses and writes the host's settings."""
    environment.cache.lock.parent.mkdir(parents=True, exist_ok=True)
    with environment.cache.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
