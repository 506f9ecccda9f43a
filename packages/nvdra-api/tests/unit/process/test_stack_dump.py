# SPDX-License-Identifier: Apache-2.0
"""SIGUSR2: the stacks of threads and tasks, in files and on stderr, and the process goes on."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvdra_testing.polling import wait_until

PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from nvdra_runtime.process import app, stack_dump

async def deeper(stop):
    await stop.wait()

async def waits(stop):
    await deeper(stop)

async def main(stop):
    stack_dump.install_signal_handler([Path(path) for path in sys.argv[2:]])
    async with asyncio.TaskGroup() as group:
        group.create_task(waits(stop), name="patience")
        await asyncio.sleep(0)
        print("running", flush=True)
        if sys.argv[1] == "hangs":
            time.sleep(2)

sys.exit(app.run(main))
"""


@contextlib.contextmanager
def started(how: str, *files: Path) -> Iterator[Any]:
    argv = [sys.executable, "-c", PROGRAM, how, *map(str, files)]
    with subprocess.Popen(argv, stdout=-1, stderr=-1, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


def ended(process: Any) -> Any:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    return errors


def written(path: Path) -> Any:
    asyncio.run(wait_until(lambda: path.exists() and path.read_text()))
    return path.read_text()


def test_threads_and_tasks_are_in_every_file_with_all_that_they_wait_for(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "other"]
    with started("waits", *files) as process:
        process.send_signal(signal.SIGUSR2)
        text = written(files[1])
        assert written(files[0]) == text
        assert process.poll() is None
        ended(process)
    assert 'Thread "MainThread"' in text
    task = text.partition('Task "patience"')[2].partition('Task "')[0]
    assert task.index("in waits") < task.index("in deeper") < task.index("in wait\n")
    assert "in main" in text


def test_one_that_hangs_says_so_at_once_on_stderr_and_in_the_files_when_it_can(
    tmp_path: Path,
) -> None:
    with started("hangs", tmp_path / "one") as process:
        process.send_signal(signal.SIGUSR2)
        assert "most recent call first" in process.stderr.readline()
        assert 'Task "patience"' in written(tmp_path / "one")
        ended(process)


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    (tmp_path / "one").symlink_to(treasure)
    with started("waits", tmp_path / "one", tmp_path / "other") as process:
        process.send_signal(signal.SIGUSR2)
        assert "in main" in written(tmp_path / "other")
        errors = ended(process)
    assert treasure.read_text() == "gold"
    assert f"Cannot write the stacks to {tmp_path / 'one'}: " in errors
