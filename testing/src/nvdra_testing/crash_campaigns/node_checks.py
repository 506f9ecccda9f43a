# SPDX-License-Identifier: Apache-2.0
"""Reads records, files and CDI specs of a sandbox's node, and checks that they are correct."""

import asyncio
import contextlib
import difflib
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence

from nvdra_testing.crash_campaigns import points
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox

SPECS_S = 10.0
"""The longest time until a CDI spec has a GPU that comes back from a virtual machine."""


async def start_on_clean_node(sandbox: PluginSandbox) -> None:
    """Start the plugin on an empty node, and remember the CDI specs that it writes."""
    await sandbox.kill()
    sandbox.restore_files("nothing")
    await sandbox.start()
    # A plugin that waits for the server of its sysfs looks as if it were idle.
    await sandbox.wait_until(lambda: _describes_all(sandbox), "the CDI spec of all GPUs")
    sandbox.specs = cdi_specs(sandbox)


def cdi_specs(sandbox: PluginSandbox) -> Mapping[str, bytes]:
    """The content of the CDI directory, by file name."""
    return {path.name: path.read_bytes() for path in sandbox.node.cdi.iterdir()}


def records(sandbox: PluginSandbox) -> Mapping[str, str]:
    """The payloads in the state file by claim, as a new process would find them."""
    return _read_table(sandbox, "records")


def started_claims(sandbox: PluginSandbox) -> set[str]:
    """The claims whose steps were begun and have not ended, by UID."""
    return set(_read_table(sandbox, "started_records"))


def files(sandbox: PluginSandbox) -> set[str]:
    """The files that the plugin has created, relative to the sandbox's directory.

    Without those in directories that it clears when it starts.
    """
    roots = (sandbox.node.kubelet / "plugins", sandbox.kubelet.registry_dir, sandbox.node.cdi)
    kept = [sandbox.state_dir / name for name in sandbox.tested.kept_dirs]
    paths = (path for root in roots for path in root.rglob("*") if not path.is_dir())
    counted = (path for path in paths if not any(map(path.is_relative_to, kept)))
    return {str(path.relative_to(sandbox.directory)) for path in counted}


def leftover_files(sandbox: PluginSandbox) -> list[str]:
    """The files that the plugin would have renamed or removed if it had not been killed.

    Without those of claims that have a record.
    """
    recorded = records(sandbox).keys() | started_claims(sandbox)
    extra = sorted(files(sandbox) - _files_of_running_plugin(sandbox))
    return [
        points.display_name(str(sandbox.directory / path), sandbox.trace_names)
        for path in extra
        if not any(uid in path for uid in recorded)
    ]


async def check_nothing_prepared(sandbox: PluginSandbox, devices: Sequence[str]) -> None:
    """Check that nothing is prepared, that the devices can be prepared.

    And that no file is left.
    """
    claim = await asyncio.to_thread(sandbox.create_claim, *devices)
    for answers in (await sandbox.dra.prepare([claim]), await sandbox.dra.unprepare([claim])):
        assert not answers[claim.uid].error, answers[claim.uid].error
    await asyncio.to_thread(sandbox.delete_claim, claim)
    await check_nothing_left(sandbox)


async def check_nothing_left(sandbox: PluginSandbox) -> None:
    """Check that no claim is recorded, and that the plugin's files are those of an idle node."""
    held = await asyncio.to_thread(records, sandbox)
    assert held == {}, f"records are left: {held}"
    begun = await asyncio.to_thread(started_claims, sandbox)
    assert not begun, f"steps were begun and not ended: {begun}"
    await sandbox.wait_slices()  # a GPU that has healed may just be withdrawn
    # Or one that comes back from vfio may just be described.
    with contextlib.suppress(AssertionError):
        await sandbox.wait_until(lambda: not _differing_specs(sandbox), "the specs", SPECS_S)
    problem = _differing_specs(sandbox)
    assert not problem, problem
    extra = files(sandbox) - _files_of_running_plugin(sandbox)
    assert not extra, f"files are left: {sorted(extra)}"
    assert "Traceback" not in sandbox.log(), sandbox.log()[-2000:]


async def check_stop(sandbox: PluginSandbox) -> None:
    """Check that the plugin ends well, and leaves only the files of an idle node."""
    code = await sandbox.stop()
    assert code == 0, f"the plugin ended with {code}\n{sandbox.log()[-2000:]}"
    extra = files(sandbox) - _files_of_stopped_plugin(sandbox)
    assert not extra, f"files are left: {sorted(extra)}"


def _describes_all(sandbox: PluginSandbox) -> bool:
    """Whether there is a CDI spec, and it has the device nodes of all whole GPUs."""
    specs = [path.read_text() for path in sandbox.node.cdi.glob("*.yaml")]
    gpus = [each for each in sandbox.tested.devices if re.fullmatch(r"gpu-\d+", each)]
    nodes = (f"path: /dev/nvidia{gpu.removeprefix('gpu-')}\n" for gpu in gpus)
    return bool(specs) and all(any(node in spec for spec in specs) for node in nodes)


def _differing_specs(sandbox: PluginSandbox) -> str:
    """How the CDI directory differs from that of an idle node; empty if it does not.

    A GPU that comes back from a virtual machine may have another minor number in this boot, and so
    another name in the spec. The names of its whole GPUs that were given out stay.
    """
    found = cdi_specs(sandbox)
    if found.keys() != sandbox.specs.keys():
        return f"in the CDI directory: {sorted(found)}, not {[*sandbox.specs]}"
    lines = (
        line
        for name in found
        for line in difflib.unified_diff(
            _lines(sandbox, sandbox.specs[name]), _lines(sandbox, found[name]), n=1
        )
    )
    return "\n".join(lines)


def _lines(sandbox: PluginSandbox, spec: bytes) -> list[str]:
    lines = spec.decode().splitlines()
    if sandbox.tested.is_passing:
        return sorted({line for line in lines if " path: /dev/" in line})
    return lines


def _read_table(sandbox: PluginSandbox, table: str) -> Mapping[str, str]:
    if sandbox.process is not None:
        return _read_file(f"file:{sandbox.state_dir}/state.sqlite?mode=ro", table)
    # Read a copy, so that the file stays as a kill left it.
    with tempfile.TemporaryDirectory(dir=sandbox.directory) as copy:
        for path in sandbox.state_dir.glob("state.sqlite*"):
            shutil.copy(path, copy)
        return _read_file(f"file:{copy}/state.sqlite", table)


def _read_file(uri: str, table: str) -> Mapping[str, str]:
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            return dict(connection.execute(f"SELECT uid, payload FROM {table}"))
        except sqlite3.OperationalError as error:
            # Killed before it was created, or no claim has had steps.
            if "no such table" in str(error):
                return {}
            raise


def _files_of_stopped_plugin(sandbox: PluginSandbox) -> set[str]:
    names = ("instance.lock", "state.sqlite", *sandbox.tested.kept_files)
    kept = {str((sandbox.state_dir / name).relative_to(sandbox.directory)) for name in names}
    return kept | {f"cdi/{name}" for name in sandbox.specs}


def _files_of_running_plugin(sandbox: PluginSandbox) -> set[str]:
    sockets = {
        sandbox.state_dir / "dra.sock",
        sandbox.kubelet.registry_dir / f"{sandbox.tested.driver}-reg.sock",
    }
    logs = {sandbox.state_dir / f"state.sqlite-{suffix}" for suffix in ("wal", "shm")}
    running = {str(path.relative_to(sandbox.directory)) for path in sockets | logs}
    return _files_of_stopped_plugin(sandbox) | running
