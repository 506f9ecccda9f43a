# SPDX-License-Identifier: Apache-2.0
"""A second plugin on the same node stands by, and the first one is not affected."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from nvdra_testing.node.rig import Rig


def files(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below a directory: inode, size, time of its last change."""
    return {
        str(path.relative_to(directory)): (found.st_ino, found.st_size, found.st_mtime_ns)
        for path in directory.rglob("*")
        for found in (path.lstat(),)
    }


def everything(rig: Rig) -> tuple[Any, ...]:
    """What a plugin has on the node, in the API server and with the kubelet."""
    return (
        files(rig.node.kubelet),
        files(rig.node.cdi),
        rig.slices(),
        rig.kubelet.registrations[:],
    )


async def settled(rig: Rig) -> tuple[Any, ...]:
    """The same, once the plugin has written what it writes behind its answer."""
    async with asyncio.timeout(30):
        while True:
            before = everything(rig)
            await asyncio.sleep(1)
            if everything(rig) == before:
                return before


async def test_a_second_plugin_that_is_not_a_pod_stands_by_and_touches_nothing_of_the_first(
    rig: Rig,
) -> None:
    await rig.start("--pod-name=the-first")
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    left = await settled(rig)
    second = rig.launch("--pod-name=the-second")
    await rig.wait_until(lambda: second.get("/readyz")[0] == 200, "the second one to be ready")
    checks = second.get("/readyz?verbose")[1]
    assert "standing by for another instance of this driver" in checks
    assert "pod the-first" in checks
    assert f"pid {rig.process.process.pid}" in checks
    assert second.stop() == 0
    assert left == everything(rig)
    assert (await rig.dra.prepare([held]))[held.uid] == before
    new = rig.create_claim("gpu-2")
    assert not (await rig.dra.prepare([new]))[new.uid].error


async def test_who_stands_by_leaves_a_removed_lock_to_the_active_plugin(rig: Rig) -> None:
    await rig.start("--pod-name=the-first")
    second = rig.launch()
    await rig.wait_until(lambda: "standing by" in second.get("/readyz?verbose")[1], "the second")
    lock = rig.plugin_dir / "instance.lock"
    lock.unlink()
    # The file is there before its content.
    await rig.wait_until(lambda: lock.exists() and bool(lock.read_text()), "the lock again")
    assert json.loads(lock.read_text())["pod"] == "the-first"
    await asyncio.sleep(1)
    assert rig.process.process.poll() is None
    assert "taking over" not in second.log.read_text()


async def test_the_next_plugin_takes_over_from_one_that_was_killed(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    rig.process.stop(signal.SIGKILL)
    await rig.kubelet.restart()  # a kubelet that runs would have seen the connection end
    await rig.start()
    assert (await rig.dra.prepare([held]))[held.uid] == before
