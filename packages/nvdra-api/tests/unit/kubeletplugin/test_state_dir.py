"""The plugin's directory: locked by one process, and waited for while its disk cannot be used."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PosixPath
from typing import Any, ClassVar, Literal

import aiohttp
import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.http import listener, probes
from nvdra_runtime.kubeletplugin import state_dir
from nvdra_runtime.kubeletplugin.state_dir import StateDir
from nvdra_runtime.node.files import InstanceLock
from nvdra_runtime.process.clock import SystemClock

HOOK = "/usr/bin/hook"
REF = ClaimRef("ml", "train", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))

IMPORTED_LATE = (listener, probes)
"""What the source imports while it waits. It is loaded here, so that no test takes its time."""

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


def locked(
    directory: Path, stop: asyncio.Event | None = None, endpoint: str = "", pod: str = "plugin-x"
) -> AbstractAsyncContextManager[StateDir | None]:
    return state_dir.lock(
        directory, HOOK, endpoint, pod, lambda: "boot-1", SystemClock(), stop or asyncio.Event()
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
        holder = json.loads((directory / "instance.lock").read_text())
        assert holder == {"pid": str(os.getpid()), "pod": "plugin-x"}
    async with locked(directory, pod="") as home:
        assert home is not None
        assert list(home.store.records()) == [REF.uid]
        assert json.loads((directory / "instance.lock").read_text()) == {"pid": str(os.getpid())}


async def test_a_second_instance_is_refused_at_once_with_the_pod_of_the_first(
    tmp_path: Path,
) -> None:
    async with locked(tmp_path):
        stop = Waits(nothing)
        with pytest.raises(PermanentError, match="pod plugin-x") as caught:
            async with locked(tmp_path, stop, pod="plugin-y"):
                pass
    assert caught.value.reason is Reason.LOCK_TIMEOUT
    assert len(stop.left) == 1


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


async def test_another_instance_that_came_first_ends_the_waiting(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").mkdir()
    others = InstanceLock(tmp_path / "instance.lock", {"pid": "4711"})

    async def other_locks() -> None:
        others.__enter__()

    with pytest.raises(PermanentError, match="pid 4711"):
        async with locked(tmp_path, Waits(other_locks, nothing)):
            pass
    others.__exit__(None, None, None)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def test_readyz_tells_the_latest_problem_while_the_process_waits(tmp_path: Path) -> None:
    directory = FailingDisk(tmp_path / "plugin")
    FailingDisk.errors = [errno.ENOSPC, errno.EROFS]
    endpoint = f"127.0.0.1:{free_port()}"
    told: list[tuple[str, int, str]] = []

    async def probe() -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("/readyz", "/healthz"):
                async with session.get(f"http://{endpoint}{path}") as answer:
                    told.append((path, answer.status, await answer.text()))

    async with locked(directory, Waits(probe, probe), endpoint) as home:
        assert home is not None
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"http://{endpoint}/readyz")
    failed = "[-]state failed: {}: {}\nreadyz check failed\n"
    assert told == [
        ("/readyz", 503, failed.format(directory, "No space left on device")),
        ("/healthz", 200, "ok"),
        ("/readyz", 503, failed.format(directory, "Read-only file system")),
        ("/healthz", 200, "ok"),
    ]


async def test_a_boot_id_that_cannot_be_read_is_waited_for(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.symlink_to("x" * 300)

    async def repair() -> None:
        boot_id.unlink()
        boot_id.write_text("boot-2")

    stop = Waits(repair)
    async with state_dir.lock(
        tmp_path / "plugin", HOOK, "", "p", boot_id.read_text, SystemClock(), stop
    ) as home:
        assert home is not None
        assert home.store.boot_id == "boot-2"
