# SPDX-License-Identifier: Apache-2.0
"""The command `kill` of the images: what it sends to whom, and what it says if it cannot."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from nvdra_runtime.process import kill_command

PROGRAM = """
import signal
watched = {signal.SIGUSR2, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, watched)
print("running", flush=True)
print(signal.Signals(signal.sigwait(watched)).name)
"""


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """A process that prints the first signal that it gets, and ends."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=-1, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (["-s", "SIGUSR2"], "SIGUSR2"),
        (["-s", "USR2"], "SIGUSR2"),
        (["-SIGUSR2"], "SIGUSR2"),
        (["-USR2"], "SIGUSR2"),
        ([f"-{signal.SIGUSR2.value}"], "SIGUSR2"),
        (["-s", str(signal.SIGUSR2.value), "--"], "SIGUSR2"),
        ([], "SIGTERM"),
        (["--"], "SIGTERM"),
    ],
)
def test_a_process_gets_the_signal_that_is_named_in_any_usual_way(
    how: list[str], wanted: str
) -> None:
    with started() as process:
        kill_command.main([*how, str(process.pid)])
        assert process.communicate(timeout=10)[0] == f"{wanted}\n"


@pytest.mark.parametrize("name", ["nvdra-kill", "kill"])
def test_help_is_no_error_and_has_the_name_that_was_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/opt/nvdra/bin/{name}", "--help"])
    with pytest.raises(SystemExit) as caught:
        kill_command.main()
    assert caught.value.code == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"usage: {name} [-s SIGNAL | -SIGNAL] PID...\n")
    assert said.err == ""


def test_one_process_that_is_gone_is_named_and_the_others_get_the_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with started() as gone:
        pass
    with started() as process:
        with pytest.raises(SystemExit) as caught:
            kill_command.main(["-s", "USR2", str(gone.pid), str(process.pid)])
        assert process.communicate(timeout=10)[0] == "SIGUSR2\n"
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"kill: {gone.pid}: No such process\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-s"],
        ["-s", "USR2"],
        ["-s", "NOPE", "1"],
        ["-s", "", "1"],
        ["USR2"],
        ["1x"],
    ],
)
def test_arguments_that_mean_nothing_send_nothing(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        kill_command.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: kill ")
