"""A second plugin on the same node ends, and the first one is not affected."""

import asyncio
import signal
import time
from pathlib import Path

from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig


def files(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below a directory: inode, size, time of its last change."""
    return {
        str(path.relative_to(directory)): (found.st_ino, found.st_size, found.st_mtime_ns)
        for path in directory.rglob("*")
        for found in (path.lstat(),)
    }


async def test_a_second_plugin_ends_at_once_names_the_first_and_touches_nothing_of_it(
    rig: Rig,
) -> None:
    await rig.start("--pod-name=the-first")
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    await asyncio.sleep(1)  # the root of the trace is marked in the state file behind the answer
    left = (
        files(rig.node.kubelet),
        files(rig.node.cdi),
        rig.slices(),
        rig.kubelet.registrations[:],
    )
    second = rig.launch("--pod-name=the-second")
    began = time.monotonic()
    assert await asyncio.to_thread(second.process.wait, 20) == 1
    assert time.monotonic() - began < 10
    *_, last = second.log.read_text().splitlines()
    assert last.startswith("Error: LockTimeout: another instance of this driver runs on this node")
    assert "pod the-first" in last
    assert f"pid {rig.process.process.pid}" in last
    assert left == (
        files(rig.node.kubelet),
        files(rig.node.cdi),
        rig.slices(),
        rig.kubelet.registrations,
    )
    assert (await rig.dra.prepare([held]))[held.uid] == before
    new = rig.create_claim("gpu-2")
    assert not (await rig.dra.prepare([new]))[new.uid].error


async def test_a_second_plugin_is_refused_also_after_the_directory_was_removed(rig: Rig) -> None:
    await rig.start("--pod-name=the-first")
    directory = rig.node.kubelet / "plugins" / plugin.DRIVER
    (directory / "instance.lock").unlink()
    await rig.wait_until((directory / "instance.lock").exists, "the lock to be taken anew")
    second = rig.launch()
    assert await asyncio.to_thread(second.process.wait, 20) == 1
    assert "pod the-first" in second.log.read_text()
    assert rig.process.process.poll() is None


async def test_the_next_plugin_takes_over_from_one_that_was_killed(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    rig.process.stop(signal.SIGKILL)
    await rig.kubelet.restart()  # a kubelet that runs would have seen the connection end
    await rig.start()
    assert (await rig.dra.prepare([held]))[held.uid] == before
