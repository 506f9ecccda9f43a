# SPDX-License-Identifier: Apache-2.0
"""Install and uninstall a simulated driver on this machine.

A list of the installed files is stored in the driver root, so that a later process can replace or
remove them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from platform import release

from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import capability_files, device_nodes, procfs, sysfs, trees
from nvdra_sim.filesystem import driver_root as driverroot
from nvdra_sim.native import programs
from nvdra_sim.pci import files, modules
from nvdra_sim.state_file import encoding, state

INSTALLED_FILES = ".nvdra-sim.json"
LD_CACHE = "etc/ld.so.cache"


@dataclass(frozen=True)
class Roots:
    """The roots of an installation. `dev` is the directory of the device nodes, like `/dev`."""

    driver: Path
    proc: Path
    sys: Path
    dev: Path

    @classmethod
    def below(cls, directory: Path) -> Roots:
        """The roots as subdirectories of one directory."""
        return cls(directory / "driver", directory / "proc", directory / "sys", directory / "dev")


def install(
    description: NodeDescription,
    *,
    driver_root: Path,
    proc_root: Path,
    sys_root: Path,
    dev_root: Path,
    modules_root: Path | None = None,
) -> None:
    """Installs a node: driver files, procfs, sysfs, device nodes and the state file.

    Installing the same description again changes nothing, not even the state of the GPUs. Another
    description replaces the installed one. Files that the simulator did not create are not changed.

    Args:
        description: The node.
        driver_root: The root for libraries, programs, firmware and the state file.
        proc_root: The directory that replaces `/proc`.
        sys_root: The directory that replaces `/sys`.
        dev_root: The directory that replaces `/dev`.
        modules_root: The directory that replaces `/lib/modules`; None: it is not written.

    Raises:
        trees.ForeignFileError: A file exists that the simulator did not create. Nothing changed.
        encoding.UnsupportedError: The library cannot simulate a part of the description.
        nvml_library.BuildError: The native parts cannot be compiled.
        PermissionError: `render.nodes` is not `table`, and device nodes cannot be created.
    """
    encoding.description(description)  # raises UnsupportedError before any file is written
    state_file = driver_root / driverroot.state_path(description)
    wanted = [
        (driverroot.tree(description, programs.build()), driver_root),
        *_kernel_trees(description, state_file, proc_root, sys_root, dev_root),
    ]
    if modules_root is not None:
        wanted.append((modules_tree(description), modules_root))
    file_list = driver_root / INSTALLED_FILES
    former = _read(file_list)
    owned = set(former)
    ours = [path for tree, root in wanted for path in trees.plan(tree, root, owned)]
    ours += _extras(description, driver_root)
    _write(file_list, [*former, *ours])
    kept = set(ours)
    trees.remove([path for path in former if path not in kept])
    for tree, root in wanted:
        trees.write(tree, root, owned)
    node = _write_state(description, state_file, proc_root)
    node.move_roots(dev_root=dev_root, sys_root=sys_root)
    capability_files.update(node.snapshot(), description.gpus, proc_root)
    if description.render.ldcache:
        _write_ld_cache(driver_root, driverroot.library_directory(description))
    _write(file_list, ours)


def modules_tree(description: NodeDescription) -> trees.Tree:
    """The files below the root of kernel modules: what modprobe knows of this kernel's modules."""
    return {
        f"{release()}/modules.alias": trees.text(modules.aliases(description)),
        f"{release()}/modules.dep": trees.text(modules.dependencies(description)),
    }


def _kernel_trees(
    description: NodeDescription, state_file: Path, proc_root: Path, sys_root: Path, dev_root: Path
) -> list[tuple[trees.Tree, Path]]:
    """Procfs, sysfs and device nodes, as the node is now, or after its first boot."""
    existing = _existing_state(description, state_file)
    if existing is None:
        return [
            (procfs.tree(description), proc_root),
            (sysfs.tree(description), sys_root),
            (device_nodes.tree(description), dev_root),
        ]
    now = files.of_state(existing)
    return [
        ({**procfs.tree(description, {}), **now.proc}, proc_root),
        (now.sys, sys_root),
        (now.dev, dev_root),
    ]


def is_installed(driver_root: Path) -> bool:
    """Whether `install` has installed a driver at this driver root."""
    return (driver_root / INSTALLED_FILES).exists()


def uninstall(*, driver_root: Path) -> None:
    """Removes exactly the installed files, in all four roots."""
    file_list = driver_root / INSTALLED_FILES
    owned = _read(file_list)
    file_list.unlink(missing_ok=True)
    for path in owned:
        if path.name == driverroot.STATE_FILE:
            _remove_changing_files(path)
    trees.remove(owned)


def environment(driver_root: Path, description: NodeDescription) -> dict[str, str]:
    """The environment variables with which a process finds the simulated library and its node."""
    return {
        "LD_LIBRARY_PATH": str(driver_root / driverroot.library_directory(description)),
        "NVDRA_SIM_STATE": str(driver_root / driverroot.state_path(description)),
    }


def _extras(description: NodeDescription, driver_root: Path) -> list[Path]:
    """The installed files that are not part of a tree."""
    extras = [driver_root / driverroot.state_path(description)]
    if description.render.ldcache:
        extras.append(driver_root / LD_CACHE)
    return extras


def _write_state(description: NodeDescription, path: Path, proc_root: Path) -> state.State:
    existing = _existing_state(description, path)
    if existing is None:
        return state.create(path, description, proc_root)
    existing.move_proc_root(proc_root)
    return existing


def _existing_state(description: NodeDescription, path: Path) -> state.State | None:
    """The state of the same node; None: there is no state file, or one of another version."""
    try:
        existing = state.load(path)
        return existing if existing.description() == description else None
    except state.StateError:
        return None


def _remove_changing_files(state_path: Path) -> None:
    """Removes files of MIG instances and drivers that came after the installation, too."""
    try:
        node = state.load(state_path)
    except state.StateError:
        return
    capability_files.remove(node.snapshot(), node.description().gpus, node.proc_root)
    files.remove(node)


def _write_ld_cache(root: Path, libraries: str) -> None:
    subprocess.run(["ldconfig", "-X", "-r", str(root), f"/{libraries}"], check=True)


def _read(file_list: Path) -> list[Path]:
    try:
        return [Path(path) for path in json.loads(file_list.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []


def _write(file_list: Path, owned: Iterable[Path]) -> None:
    """Writes the list of files by rename, before the files themselves are created."""
    file_list.parent.mkdir(parents=True, exist_ok=True)
    unique = [str(path) for path in dict.fromkeys(owned)]
    new = file_list.with_suffix(".new")
    new.write_text(json.dumps(unique, indent=0), encoding="utf-8")
    new.replace(file_list)
