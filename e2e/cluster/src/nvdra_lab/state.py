# SPDX-License-Identifier: Apache-2.0
"""The labs of this machine: their directories, and the decisions of each."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from nvdra_lab import file_removal
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.layout import LabDir
from nvdra_lab.machines.mounts import mount_points
from nvdra_lab.model import Lab, check_name
from nvdra_lab.progress import Progress


def folder(environment: Environment, name: str) -> LabDir:
    """The folder of a lab, whether it exists or not."""
    return LabDir(environment.state / name)


def load(environment: Environment, name: str) -> Lab | None:
    """A lab that was started and not stopped; None if there is none."""
    try:
        return Lab.model_validate_json(folder(environment, name).lab_file.read_text())
    except FileNotFoundError:
        return None


def required(environment: Environment, name: str) -> Lab:
    """A lab that must exist.

    Raises:
        LabError: It does not exist.
    """
    lab = load(environment, name)
    if lab is None:
        others = ", ".join(other.name for other in all_labs(environment)) or "none"
        whose = "" if environment.is_root else ", of yours: those of root are for root"
        raise LabError(
            f"there is no lab {name!r} (labs: {others}{whose}); start one: lab up, or name "
            "another one: --name"
        )
    return lab


def all_labs(environment: Environment) -> list[Lab]:
    """All labs of this user, by name."""
    if not environment.state.is_dir():
        return []
    labs = (load(environment, path.name) for path in sorted(environment.state.iterdir()))
    return [lab for lab in labs if lab is not None]


def save(environment: Environment, lab: Lab, kernel_settings: dict[str, str]) -> LabDir:
    """Create a lab's directory, and save the kernel's settings and the decisions.

    `lab.json` is written last and completely; a directory without it has nothing started.
    """
    where = folder(environment, lab.name)
    where.root.mkdir(parents=True, mode=0o700)
    where.kernel_file.write_text(json.dumps(kernel_settings))
    unfinished = where.lab_file.with_suffix(".new")
    unfinished.write_text(lab.model_dump_json(indent=1))
    unfinished.rename(where.lab_file)
    return where


def kernel_settings(where: LabDir) -> dict[str, str]:
    """The kernel's settings before that lab; empty if they were not saved."""
    try:
        settings: dict[str, str] = json.loads(where.kernel_file.read_text())
    except FileNotFoundError:
        return {}
    return settings


def remove(environment: Environment, name: str) -> None:
    """Remove a lab's directory, and the directory of all labs with the last one.

    The decisions are removed last, so that an interrupted removal can be repeated.

    Raises:
        LabError: The name is invalid, or something is still mounted below the directory.
    """
    check_name(name)
    root = folder(environment, name).root
    mounted = [point for point in mount_points() if Path(point).is_relative_to(root)]
    if mounted:
        raise LabError(f"still mounted below {root}: {', '.join(sorted(mounted))}")
    for part in (folder(environment, name).machines, root):
        if part.exists():
            file_removal.remove_tree(part)
    with contextlib.suppress(OSError):
        environment.state.rmdir()


@contextlib.contextmanager
def locked(lock: Path, progress: Progress, who: str) -> Iterator[None]:
    """Hold a lock among the `lab` commands of this machine.

    Args:
        lock: Its file.
        progress: Reports a wait.
        who: Which other command may hold it, for that report.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step(f"waiting for {who}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
