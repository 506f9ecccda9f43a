# SPDX-License-Identifier: Apache-2.0
"""The frame of a process: signals stop it, failures are told in one line, bugs with their stack."""

import signal
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import asyncio, sys
from nvdra_runtime.process import app
from nvdra_api.errors import PermanentError, Reason

async def fail(error):
    raise error

async def main(stop):
    print("running", flush=True)
    {body}
    print("left", flush=True)

sys.exit(app.run(main))
"""


def start(body: Any) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(body: Any) -> Any:
    with start(body) as process:
        _, errors = process.communicate()
    return process.returncode, errors


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda n: n.name
)
def test_a_signal_stops_it_in_order(number: int) -> None:
    with start("await stop.wait()") as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (0, "left\n", "")


def test_sigusr2_shows_what_every_thread_does_and_nothing_stops() -> None:
    with start("await stop.wait()") as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGUSR2)
        assert "most recent call first" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0


def test_a_known_failure_is_one_line_without_a_stack() -> None:
    failure = 'PermanentError(Reason.STATE_CORRUPT, "the file\\nis damaged", "move it away")'
    assert ended(f"await fail({failure})") == (
        1,
        "Error: StateCorrupt: the file is damaged; move it away\n",
    )


def test_a_missing_file_is_one_line_without_a_stack() -> None:
    body = 'open("/nowhere/at/all")'
    assert ended(body) == (1, "Error: [Errno 2] No such file or directory: '/nowhere/at/all'\n")


def test_failures_of_several_tasks_are_a_line_each() -> None:
    failure = 'PermanentError(Reason.STATE_CORRUPT, "{}")'
    body = f"""
    async with asyncio.TaskGroup() as outer:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail({failure.format("first")}))
            group.create_task(fail({failure.format("second")}))
"""
    assert ended(body) == (1, "Error: StateCorrupt: first\nError: StateCorrupt: second\n")


def test_a_bug_shows_its_stack_above_its_line() -> None:
    code, errors = ended("await fail(KeyError('gpu-0'))")
    assert code == 1
    assert "Traceback" in errors
    assert errors.splitlines()[-1] == "Error: KeyError: 'gpu-0'"


def test_the_garbage_collector_looks_at_nothing_that_was_imported() -> None:
    body = """
    import gc
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10 * len(gc.get_objects())
    """
    process = PROGRAM.replace("import asyncio, sys", "import asyncio, gc, sys; gc.disable()")
    with subprocess.Popen(
        [sys.executable, "-c", process.format(body=body.strip())],
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        _, errors = running.communicate()
    assert (running.returncode, errors) == (0, "")
