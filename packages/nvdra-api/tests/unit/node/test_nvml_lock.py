# SPDX-License-Identifier: Apache-2.0
"""Sessions share the lock, a switch of a GPU's driver has it alone, and waits are bounded."""

import asyncio
import sys
from pathlib import Path

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.node import nvml_lock
from nvdra_runtime.node.nvml_lock import SessionHold

HOLD = """
import sys, time
from pathlib import Path
from nvdra_runtime.node.nvml_lock import SessionHold
hold = SessionHold(Path(sys.argv[1]))
print(hold.acquire(), flush=True)
time.sleep(60)
"""


def after(seconds: float) -> float:
    """A deadline."""
    return asyncio.get_running_loop().time() + seconds


async def test_without_the_file_every_session_may_open(tmp_path: Path) -> None:
    hold = SessionHold(tmp_path)
    assert hold.acquire()
    assert not hold.is_in_the_way()
    hold.release()
    assert not (tmp_path / nvml_lock.FILE_NAME).exists()


async def test_sessions_share_it_and_a_switch_waits_for_all_of_them(tmp_path: Path) -> None:
    nvml_lock.create(tmp_path)
    first, second = SessionHold(tmp_path), SessionHold(tmp_path)
    assert first.acquire()
    assert second.acquire()
    assert not first.is_in_the_way()

    async def switch() -> str:
        async with nvml_lock.exclusive(tmp_path, after(10)):
            return "alone"

    async with asyncio.TaskGroup() as group:
        switching = group.create_task(switch())
        await asyncio.sleep(0.1)
        assert first.is_in_the_way()
        assert second.is_in_the_way()
        assert not SessionHold(tmp_path).acquire(), "newcomers would make it wait for ever"
        first.release()
        await asyncio.sleep(0.1)
        assert not switching.done()
        second.release()
    assert switching.result() == "alone"
    assert first.acquire()
    first.release()


async def test_while_a_switch_has_it_no_session_opens_and_no_other_switch_begins(
    tmp_path: Path,
) -> None:
    async with nvml_lock.exclusive(tmp_path, after(1)):
        assert not SessionHold(tmp_path).acquire()
        with pytest.raises(RetryableError) as caught:
            async with nvml_lock.exclusive(tmp_path, after(0.1)):
                raise AssertionError("two switches at once")
        assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    hold = SessionHold(tmp_path)
    assert hold.acquire()
    hold.release()


async def test_a_session_that_stays_ends_the_wait_and_is_not_in_the_way_any_more(
    tmp_path: Path,
) -> None:
    nvml_lock.create(tmp_path)
    hold = SessionHold(tmp_path)
    assert hold.acquire()
    with pytest.raises(RetryableError):
        async with nvml_lock.exclusive(tmp_path, after(0.1)):
            raise AssertionError("the session is open")
    assert not hold.is_in_the_way()
    hold.release()


async def test_a_session_that_opens_meanwhile_waits_for_the_end_of_the_switch(
    tmp_path: Path,
) -> None:
    hold = SessionHold(tmp_path)
    async with asyncio.TaskGroup() as group, nvml_lock.exclusive(tmp_path, after(1)):
        assert not await asyncio.to_thread(hold.acquire_within, 0.05)
        opening = group.create_task(asyncio.to_thread(hold.acquire_within, 10))
        await asyncio.sleep(0.05)
        assert not opening.done()
    assert opening.result()
    hold.release()


async def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    nvml_lock.create(tmp_path)
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"True\n"
    with pytest.raises(RetryableError):
        async with nvml_lock.exclusive(tmp_path, after(0.1)):
            raise AssertionError("the other process has a session")
    other.kill()
    await other.wait()
    async with nvml_lock.exclusive(tmp_path, after(1)):
        pass
