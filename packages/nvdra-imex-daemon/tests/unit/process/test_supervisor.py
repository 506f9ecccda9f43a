# SPDX-License-Identifier: Apache-2.0
"""The supervisor with real processes: short Python scripts, and `sleep`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_imex_daemon.domain_spans import DomainReference, DomainSpans
from nvdra_imex_daemon.process import lifecycle
from nvdra_imex_daemon.process.child import ChildProcess
from nvdra_imex_daemon.process.lifecycle import Phase
from nvdra_imex_daemon.process.supervisor import RERESOLVE_SIGNAL, Supervisor
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing.polling import wait_until

SLEEP = ("sleep", "1000")
DEAF_AT_FIRST = """
import signal, sys, time
time.sleep(0.8)
signal.signal(signal.SIGUSR1, lambda *_: print("read again", flush=True))
print("up", flush=True)
while True:
    signal.pause()
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


@dataclass
class Rig:
    """A supervisor and what it has reported."""

    supervisor: Supervisor
    ends: list[str] = field(default_factory=list)
    prepared: int = 0
    obstacle: DriverError | None = None


@asynccontextmanager
async def supervised(*argv: str) -> AsyncIterator[Rig]:
    clock = SystemClock()
    metrics = ProcessMetrics(driver="d")
    telemetry = Telemetry(clock, metrics, TraceRecorder())
    story = DomainSpans(
        telemetry,
        clock,
        DomainReference("ns", "d", DomainUID("u")),
        CliqueID("c.1"),
        NodeName("n"),
        has_own_trace=False,
    )

    async def prepare() -> None:
        rig.prepared += 1
        if rig.obstacle is not None:
            raise rig.obstacle

    rig = Rig(
        Supervisor(
            argv,
            prepare,
            lambda: story.operation("start imex"),
            lambda: None,
            lambda why: rig.ends.append(why),
        )
    )
    async with rig.supervisor.running():
        yield rig


def python(lines: str) -> tuple[str, ...]:
    return (sys.executable, "-c", lines)


def is_up(rig: Rig, run: int = 1) -> Callable[[], bool]:
    return lambda: rig.supervisor.state.phase is Phase.UP and rig.supervisor.state.run == run


async def test_the_child_runs_from_start_until_the_end_of_the_block() -> None:
    async with supervised(*SLEEP) as rig:
        await asyncio.sleep(0.05)
        assert rig.prepared == 0
        rig.supervisor.start()
        await wait_until(is_up(rig))
        pid = rig.supervisor.state.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert rig.ends == []


async def test_a_killed_child_is_restarted_and_the_failure_is_kept() -> None:
    async with supervised(*SLEEP) as rig:
        rig.supervisor.start()
        await wait_until(is_up(rig))
        os.kill(rig.supervisor.state.pid, signal.SIGKILL)
        await wait_until(is_up(rig, run=2), 2)
        assert rig.ends == ["signal"]
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.message == "nvidia-imex ended by itself with signal SIGKILL"
        rig.supervisor.clear_failure()
        assert rig.supervisor.state.failure is None


async def test_output_is_relayed_and_the_last_line_explains_the_failure(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = "import sys; sys.stdout.write('[Nov 22] [ERROR] not in the list'); sys.exit(3)"
    async with supervised(*python(lines)) as rig:
        rig.supervisor.start()
        await wait_until(lambda: rig.ends)
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.reason is Reason.DAEMON_NOT_READY
        assert "exit code 3; its last output was: not in the list" in failure.message
    assert capfdbinary.readouterr().out.startswith(b"[Nov 22] [ERROR] not in the list\n")


async def test_a_missing_program_is_an_error_and_is_retried() -> None:
    async with supervised("/nowhere/nvidia-imex") as rig:
        rig.supervisor.start()
        await wait_until(lambda: len(rig.ends) > 1)
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.reason is Reason.IMEX_BINARY_MISSING
        assert "/nowhere/nvidia-imex cannot be run" in failure.message
        assert set(rig.ends) == {"refused"}


async def test_a_file_that_cannot_be_executed_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-imex"
    program.write_text("no program")
    for mode in (0o644, 0o755):
        program.chmod(mode)
        with pytest.raises(DriverError) as refused:
            await ChildProcess.start((str(program),))
        assert refused.value.reason is Reason.IMEX_BINARY_MISSING


async def test_the_child_is_not_started_before_its_files_are_written() -> None:
    async with supervised(*SLEEP) as rig:
        rig.obstacle = RetryableError(Reason.DAEMON_NOT_READY, "no template")
        rig.supervisor.start()
        await wait_until(lambda: rig.ends == ["refused"])
        assert rig.supervisor.state.failure is rig.obstacle
        rig.obstacle = None
        await wait_until(is_up(rig))


async def test_a_paused_child_ends_and_can_be_started_again() -> None:
    async with supervised(*SLEEP) as rig:
        rig.supervisor.start()
        await wait_until(is_up(rig))
        rig.supervisor.pause()
        await wait_until(lambda: rig.supervisor.state.phase is Phase.DOWN)
        assert rig.supervisor.state.failure is None
        rig.supervisor.start()
        await wait_until(is_up(rig, run=2), 2)
        assert rig.ends == []


async def test_a_restart_replaces_the_child() -> None:
    async with supervised(*SLEEP) as rig:
        rig.supervisor.start()
        await wait_until(is_up(rig))
        rig.supervisor.restart()
        await wait_until(is_up(rig, run=2), 2)
        assert rig.ends == ["replaced"]
        assert rig.supervisor.state.failure is None


async def test_a_hung_child_is_killed_and_started_again_and_its_failure_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "TERMINATION_GRACE_S", 0.3)
    async with supervised(*SLEEP) as rig:
        rig.supervisor.start()
        await wait_until(is_up(rig))
        os.kill(rig.supervisor.state.pid, signal.SIGSTOP)
        rig.supervisor.end_hung(300.0)
        await wait_until(is_up(rig, run=2), 5)
        assert rig.ends == ["hung"]
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.message.startswith("nvidia-imex gave no answer for 300 s: it hangs")


async def test_a_child_is_not_signalled_before_it_has_its_handler(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    async with supervised(*python(DEAF_AT_FIRST)) as rig:
        rig.supervisor.start()
        await wait_until(is_up(rig))
        rig.supervisor.reresolve_peers()  # the signal would kill it now
        out = b""
        async with asyncio.timeout(10):
            while b"read again\n" not in out:
                out += capfdbinary.readouterr().out
                await asyncio.sleep(0.02)
        assert rig.supervisor.state.run == 1
        assert rig.ends == []


async def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "TERMINATION_GRACE_S", 0.3)
    async with supervised(*python(STUBBORN)) as rig:
        rig.supervisor.start()
        await wait_until(is_up(rig))
        pid = rig.supervisor.state.pid
        await wait_until(lambda: _ignores_term(pid))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_end_is_noticed_while_a_grandchild_keeps_the_output_open() -> None:
    lines = "import os, sys, time\nif os.fork() == 0: time.sleep(3)\nelse: os._exit(4)"
    async with supervised(*python(lines)) as rig:
        rig.supervisor.start()
        await wait_until(lambda: rig.ends == ["exit"], 2)


def _ignores_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


async def test_a_signal_without_a_handler_is_not_handled() -> None:
    child = await ChildProcess.start(SLEEP)
    try:
        assert not child.handles(RERESOLVE_SIGNAL)
    finally:
        await child.close()
    assert await child.wait_ended() == -signal.SIGKILL
    child.send_signal(RERESOLVE_SIGNAL)  # the process has ended
