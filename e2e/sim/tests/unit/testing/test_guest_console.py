# SPDX-License-Identifier: Apache-2.0
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from nvdra_sim.testing.real_kernel import guest
from nvdra_sim.testing.real_kernel.console import Phase, Progress


def after(lines: Iterable[str]) -> Progress:
    progress = Progress()
    for line in lines:
        progress = progress.after(line)
    return progress


def test_a_guest_starts_runs_and_ends_with_a_status() -> None:
    assert after([]) == Progress(Phase.STARTING)
    assert after(["insmod x failed", "=== begin"]) == Progress(Phase.RUNNING)
    assert after(["=== begin", "one passed", "=== end 0"]) == Progress(Phase.ENDED, 0)
    assert after(["=== begin", "=== end 137"]) == Progress(Phase.ENDED, 137)


def test_an_end_before_the_begin_says_nothing() -> None:
    assert after(["=== end 0"]) == Progress(Phase.STARTING)


def test_a_line_of_a_test_is_no_end() -> None:
    assert after(["=== begin", "FAILED === end 0", "=== end x"]) == Progress(Phase.RUNNING)


def run(program: str, limit_s: float) -> guest.Run:
    return guest.run([sys.executable, "-c", program], {}, limit_s)


def test_lines_of_the_command_are_shown_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(r"print('=== begin\r\ntest_1 PASSED\r\n=== end 1\r')", 20)
    assert (done.progress, done.is_late) == (Progress(Phase.ENDED, 1), False)
    assert capsys.readouterr().out == "  test_1 PASSED\n"


def test_a_guest_that_ends_early_has_no_status() -> None:
    done = run("print('Kernel panic')", 20)
    assert (done.progress, done.is_late) == (Progress(Phase.STARTING), False)
    assert done.qemu_status == 0


def test_a_guest_that_cannot_start_has_the_status_of_qemu() -> None:
    assert run("raise SystemExit(3)", 20).qemu_status == 3


def test_a_guest_that_hangs_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    done = run(program, 2)
    assert (done.progress, done.is_late) == (Progress(Phase.STARTING), True)
    assert not Path(f"/proc/{pid.read_text()}").exists()
