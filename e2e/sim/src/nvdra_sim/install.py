"""A simulated driver installation on this machine: everything made, everything removed again.

The one caller of the tree modules and of the state file's writer. A list of what was made lies in
the driver root, so that a later process can change or remove it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nvdra_sim import devices, driverroot, image, procfs, programs, state, sysfs, trees
from nvdra_sim.description import NodeDescription

LEDGER = ".nvdra-sim.json"
LD_CACHE = "etc/ld.so.cache"


@dataclass(frozen=True)
class Roots:
    """Where the parts of an installation lie; `dev` is the directory of the nodes, like `/dev`."""

    driver: Path
    proc: Path
    sys: Path
    dev: Path

    @classmethod
    def below(cls, directory: Path) -> Roots:
        """All four side by side in one directory."""
        return cls(directory / "driver", directory / "proc", directory / "sys", directory / "dev")


def install(
    description: NodeDescription,
    *,
    driver_root: Path,
    proc_root: Path,
    sys_root: Path,
    dev_root: Path,
) -> None:
    """Makes this machine look like the node: driver files, procfs, sysfs, device nodes, state.

    Repeating it changes nothing, not even what happened to the GPUs meanwhile; another description
    replaces the former one. A file that is not from here stays, and is an error where it is in the
    way.

    Args:
        description: The node.
        driver_root: Libraries, programs, firmware and with it the state file.
        proc_root: Stands in for `/proc`.
        sys_root: Stands in for `/sys`.
        dev_root: Stands in for `/dev`.

    Raises:
        trees.ForeignFileError: A file that was not made here is in the way; nothing has changed.
        image.UnsupportedError: The library does not simulate part of the description.
        library.BuildError: The native parts cannot be compiled.
        PermissionError: `render.nodes` is not `table` and this process may not make device nodes.
    """
    image.description(description)  # refuses what the library cannot simulate before we write
    wanted = (
        (driverroot.tree(description, programs.build()), driver_root),
        (procfs.tree(description), proc_root),
        (sysfs.tree(description), sys_root),
        (devices.tree(description), dev_root),
    )
    ledger = driver_root / LEDGER
    former = _read(ledger)
    owned = set(former)
    ours = [path for tree, root in wanted for path in trees.plan(tree, root, owned)]
    ours += _extras(description, driver_root)
    _write(ledger, [*former, *ours])
    kept = set(ours)
    trees.remove([path for path in former if path not in kept])
    for tree, root in wanted:
        trees.write(tree, root, owned)
    _write_state(description, driver_root / driverroot.state_path(description))
    if description.render.ldcache:
        _write_ld_cache(driver_root, driverroot.library_directory(description))
    _write(ledger, ours)


def is_there(driver_root: Path) -> bool:
    """Whether `install` made something of which this is the driver root."""
    return (driver_root / LEDGER).exists()


def uninstall(*, driver_root: Path) -> None:
    """Removes exactly what `install` made, in all four roots; without an installation, nothing."""
    ledger = driver_root / LEDGER
    owned = _read(ledger)
    ledger.unlink(missing_ok=True)
    trees.remove(owned)


def environment(driver_root: Path, description: NodeDescription) -> dict[str, str]:
    """What a process needs to find the simulated library and its node without any root option."""
    return {
        "LD_LIBRARY_PATH": str(driver_root / driverroot.library_directory(description)),
        "NVDRA_SIM_STATE": str(driver_root / driverroot.state_path(description)),
    }


def _extras(description: NodeDescription, driver_root: Path) -> list[Path]:
    """Files that are ours although no tree holds them."""
    extras = [driver_root / driverroot.state_path(description)]
    if description.render.ldcache:
        extras.append(driver_root / LD_CACHE)
    return extras


def _write_state(description: NodeDescription, path: Path) -> None:
    try:
        if state.load(path).node() == description:
            return
    except state.StateError:
        pass  # none yet, or one of another version
    state.create(path, description)


def _write_ld_cache(root: Path, libraries: str) -> None:
    subprocess.run(["ldconfig", "-X", "-r", str(root), f"/{libraries}"], check=True)


def _read(ledger: Path) -> list[Path]:
    try:
        return [Path(path) for path in json.loads(ledger.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []


def _write(ledger: Path, owned: Iterable[Path]) -> None:
    """By rename: a crash leaves the list of before or after. Made before what it lists."""
    ledger.parent.mkdir(parents=True, exist_ok=True)
    unique = [str(path) for path in dict.fromkeys(owned)]
    new = ledger.with_suffix(".new")
    new.write_text(json.dumps(unique, indent=0), encoding="utf-8")
    new.replace(ledger)
