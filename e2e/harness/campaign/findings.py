"""What is on a lane's node: records, files, CDI specs; and whether it is what must be there."""

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence

import plugin

from campaign import points
from campaign.lane import Lane


async def begin(lane: Lane) -> None:
    """A node as after the plugin's first start, whatever was there; it runs, and is remembered."""
    await lane.kill()
    lane.restore("nothing")
    await lane.start()
    lane.specs = cdi_specs(lane)


def cdi_specs(lane: Lane) -> Mapping[str, bytes]:
    """The CDI directory, by file name."""
    return {path.name: path.read_bytes() for path in lane.node.cdi.iterdir()}


def records(lane: Lane) -> Mapping[str, str]:
    """Payloads in the state file by claim: what whoever opens it now would find."""
    if lane.process is not None:
        return _read_records(f"file:{lane.state}/state.sqlite?mode=ro")
    # It may be as a kill left it: looked at in a copy, so that it stays so.
    with tempfile.TemporaryDirectory(dir=lane.directory) as copy:
        for path in lane.state.glob("state.sqlite*"):
            shutil.copy(path, copy)
        return _read_records(f"file:{copy}/state.sqlite")


def files(lane: Lane) -> set[str]:
    """Files that the plugin has made, from the lane's directory."""
    roots = (lane.node.kubelet / "plugins", lane.kubelet.registry_dir, lane.node.cdi)
    paths = (path for root in roots for path in root.rglob("*") if not path.is_dir())
    return {str(path.relative_to(lane.directory)) for path in paths}


def left_behind(lane: Lane) -> list[str]:
    """What the plugin was about to give another name, or to remove, when it was killed."""
    extra = sorted(files(lane) - _of_a_running_plugin(lane))
    return [points.name(str(lane.directory / path), lane.names) for path in extra]


async def judge_empty(lane: Lane, devices: Sequence[str]) -> None:
    """Nobody holds anything, all of this can be had, and no file is there without a meaning."""
    claim = await asyncio.to_thread(lane.claim, *devices)
    for answers in (await lane.dra.prepare([claim]), await lane.dra.unprepare([claim])):
        assert not answers[claim.uid].error, answers[claim.uid].error
    await asyncio.to_thread(lane.delete, claim)
    held = await asyncio.to_thread(records, lane)
    assert held == {}, f"records are left: {held}"
    wrong = await asyncio.to_thread(lane.wrong_slices)
    assert not wrong, wrong
    found = cdi_specs(lane)
    assert found == lane.specs, f"in the CDI directory: {sorted(found)}, not {[*lane.specs]}"
    extra = files(lane) - _of_a_running_plugin(lane)
    assert not extra, f"files are left: {sorted(extra)}"
    assert "Traceback" not in lane.log(), lane.log()[-2000:]


async def judge_stop(lane: Lane) -> None:
    """The plugin ends well, and leaves what a node has on which nobody holds anything."""
    code = await lane.stop()
    assert code == 0, f"the plugin ended with {code}\n{lane.log()[-2000:]}"
    extra = files(lane) - _of_a_stopped_plugin(lane)
    assert not extra, f"files are left: {sorted(extra)}"


def _read_records(uri: str) -> Mapping[str, str]:
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            return dict(connection.execute("SELECT uid, payload FROM records"))
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # the plugin was killed before it made them
                return {}
            raise


def _of_a_stopped_plugin(lane: Lane) -> set[str]:
    names = ("instance.lock", "state.sqlite")
    kept = {str((lane.state / name).relative_to(lane.directory)) for name in names}
    return kept | {f"cdi/{name}" for name in lane.specs}


def _of_a_running_plugin(lane: Lane) -> set[str]:
    sockets = {lane.state / "dra.sock", lane.kubelet.registry_dir / f"{plugin.DRIVER}-reg.sock"}
    logs = {lane.state / f"state.sqlite-{suffix}" for suffix in ("wal", "shm")}
    running = {str(path.relative_to(lane.directory)) for path in sockets | logs}
    return _of_a_stopped_plugin(lane) | running
