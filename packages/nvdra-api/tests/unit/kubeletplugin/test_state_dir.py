# SPDX-License-Identifier: Apache-2.0
"""The plugin's directory: locked by one process, and waited for while its disk cannot be used."""

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path, PosixPath
from typing import Any, ClassVar, Literal

import pytest
from nvdra_api.errors import PermanentError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kubeletplugin import state_dir
from nvdra_runtime.kubeletplugin.state_dir import StateDir
from nvdra_runtime.node.instance_lock import InstanceLock
from nvdra_runtime.process.clock import SystemClock

HOOK = "/usr/bin/hook"
REF = ClaimRef("ml", "train", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))

Step = Callable[[], Awaitable[None]]


class Waits(asyncio.Event):
    """The time between two attempts: a step happens in each wait, then the process is stopped."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.left = list(steps)

    async def wait(self) -> Literal[True]:
        if not self.left:
            return True
        await self.left.pop(0)()
        raise TimeoutError


class FailingDisk(PosixPath):
    """A directory that cannot be made until the errors are used up."""

    errors: ClassVar[list[int]] = []

    def mkdir(self, *arguments: Any, **more: Any) -> None:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number), str(self))
        super().mkdir(*arguments, **more)


async def nothing() -> None:
    """Nobody repairs anything."""


async def ignore(_: str) -> None:
    """Nobody looks at the problem."""


class Wait:
    """Stands by: does a step, and then has the lock or is stopped."""

    def __init__(self, *steps: Step) -> None:
        self.left = list(steps)

    async def stand_by(self, lock: InstanceLock, _: asyncio.Event) -> bool:
        while not lock.try_acquire():
            if not self.left:
                return False
            await self.left.pop(0)()
        return True


def locked(
    directory: Path,
    stop: asyncio.Event | None = None,
    problems: list[str] | None = None,
    pod: str = "plugin-x",
    wait: Wait | None = None,
) -> AbstractAsyncContextManager[StateDir | None]:
    async def report(problem: str) -> None:
        if problems is not None:
            problems.append(problem)

    return state_dir.lock(
        directory,
        HOOK,
        {"pod": pod},
        lambda: "boot-1",
        SystemClock(),
        (wait or Wait()).stand_by,
        report,
        stop or asyncio.Event(),
    )


async def test_the_directory_is_made_and_has_the_lock_the_hook_and_the_records(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "plugins" / "gpu.nvidia.com"
    async with locked(directory) as home:
        assert home is not None
        assert home.hook_path == HOOK
        await home.store.put(REF, "prepared", "{}")
        assert home.store.boot_id == "boot-1"
        assert json.loads((directory / "instance.lock").read_text()) == {"pod": "plugin-x"}
    async with locked(directory) as home:
        assert home is not None
        assert list(home.store.records()) == [REF.uid]


async def test_a_second_instance_stands_by_and_reads_the_records_once_it_has_the_lock(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as first:
        home = await first.enter_async_context(locked(tmp_path))
        assert home is not None

        async def write() -> None:
            await home.store.put(REF, "prepared", "{}")

        async with locked(tmp_path, pod="plugin-y", wait=Wait(write, first.aclose)) as next_home:
            assert next_home is not None
            assert list(next_home.store.records()) == [REF.uid]


async def test_a_second_instance_that_is_stopped_while_it_stands_by_has_no_directory(
    tmp_path: Path,
) -> None:
    async with locked(tmp_path), locked(tmp_path, wait=Wait(nothing)) as home:
        assert home is None


@pytest.mark.parametrize(
    "number",
    [
        *(errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO),
        *(errno.ESTALE, errno.EACCES, errno.ENAMETOOLONG),
    ],
)
async def test_a_disk_that_can_be_repaired_is_waited_for(tmp_path: Path, number: int) -> None:
    FailingDisk.errors = [number, number]
    stop = Waits(nothing, nothing)
    async with locked(FailingDisk(tmp_path / "plugin"), stop) as home:
        assert home is not None
        await home.store.put(REF, "prepared", "{}")
    assert stop.left == []


async def test_an_error_of_the_set_up_is_raised_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stop = Waits(nothing)
    with pytest.raises(NotADirectoryError):
        async with locked(tmp_path / "file" / "plugin", stop):
            pass
    assert len(stop.left) == 1


async def test_an_error_of_the_set_up_ends_the_waiting_too(tmp_path: Path) -> None:
    FailingDisk.errors = [errno.ENOSPC, errno.ENOTDIR]
    stop = Waits(nothing, nothing)
    with pytest.raises(NotADirectoryError):
        async with locked(FailingDisk(tmp_path / "plugin"), stop):
            pass
    assert len(stop.left) == 1


async def test_a_process_that_is_stopped_while_it_waits_has_no_directory(tmp_path: Path) -> None:
    FailingDisk.errors = [errno.ENOSPC] * 3
    async with locked(FailingDisk(tmp_path / "plugin"), Waits(nothing)) as home:
        assert home is None


async def test_a_failed_attempt_leaves_the_lock_to_another_process(tmp_path: Path) -> None:
    broken = tmp_path / "state.sqlite"
    broken.mkdir()

    async def other_locks_and_ends() -> None:
        with InstanceLock(tmp_path / "instance.lock", {"pid": "1"}):
            broken.rmdir()

    async with locked(tmp_path, Waits(other_locks_and_ends)) as home:
        assert home is not None
        with (
            pytest.raises(PermanentError, match="pod plugin-x"),
            InstanceLock(tmp_path / "instance.lock", {"pid": "1"}),
        ):
            pass


async def test_another_instance_that_came_first_is_waited_for(tmp_path: Path) -> None:
    broken = tmp_path / "state.sqlite"
    broken.mkdir()
    others = InstanceLock(tmp_path / "instance.lock", {"pid": "4711"})

    async def other_locks() -> None:
        others.__enter__()
        broken.rmdir()

    async def other_ends() -> None:
        others.release()

    async with locked(tmp_path, Waits(other_locks), wait=Wait(other_ends)) as home:
        assert home is not None


async def test_the_latest_problem_is_reported_while_the_process_waits(tmp_path: Path) -> None:
    directory = FailingDisk(tmp_path / "plugin")
    FailingDisk.errors = [errno.ENOSPC, errno.EROFS]
    problems: list[str] = []
    async with locked(directory, Waits(nothing, nothing), problems) as home:
        assert home is not None
    assert problems == [
        f"{directory}: No space left on device",
        f"{directory}: Read-only file system",
    ]


async def test_a_boot_id_that_cannot_be_read_is_waited_for(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.symlink_to("x" * 300)

    async def repair() -> None:
        boot_id.unlink()
        boot_id.write_text("boot-2")

    stop = Waits(repair)
    async with state_dir.lock(
        tmp_path / "plugin",
        HOOK,
        {},
        boot_id.read_text,
        SystemClock(),
        Wait().stand_by,
        ignore,
        stop,
    ) as home:
        assert home is not None
        assert home.store.boot_id == "boot-2"
