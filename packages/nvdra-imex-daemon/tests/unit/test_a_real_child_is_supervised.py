"""The supervisor with real processes: the interpreter running a few lines, and `sleep`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nvdra_api.runtime.process.clock import SystemClock
from nvdra_api.runtime.telemetry.process_metrics import ProcessMetrics
from nvdra_api.runtime.telemetry.recorder import Recorder
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types.errors import DriverError, Reason, RetryableError
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName
from nvdra_imex_daemon import lifecycle
from nvdra_imex_daemon.child import Child
from nvdra_imex_daemon.lifecycle import Phase
from nvdra_imex_daemon.story import Domain, Story
from nvdra_imex_daemon.supervisor import REREAD, Supervisor
from waiting import until

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
    """What a test sees of the supervisor."""

    supervisor: Supervisor
    ends: list[str] = field(default_factory=list)
    prepared: int = 0
    obstacle: DriverError | None = None


@asynccontextmanager
async def supervised(*argv: str) -> AsyncIterator[Rig]:
    clock = SystemClock()
    metrics = ProcessMetrics(driver="d")
    telemetry = Telemetry(clock, metrics, Recorder())
    story = Story(
        telemetry, clock, Domain("ns", "d", DomainUID("u")), CliqueID("c.1"), NodeName("n")
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


async def test_nothing_runs_before_it_is_wanted_and_nothing_afterwards() -> None:
    async with supervised(*SLEEP) as rig:
        await asyncio.sleep(0.05)
        assert rig.prepared == 0
        rig.supervisor.want()
        await until(is_up(rig))
        pid = rig.supervisor.state.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert rig.ends == []


async def test_a_child_that_is_killed_comes_back_and_its_end_is_told() -> None:
    async with supervised(*SLEEP) as rig:
        rig.supervisor.want()
        await until(is_up(rig))
        os.kill(rig.supervisor.state.pid, signal.SIGKILL)
        await until(is_up(rig, run=2), 2)
        assert rig.ends == ["signal"]
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.message == "nvidia-imex ended by itself with signal SIGKILL"
        rig.supervisor.proved()
        assert rig.supervisor.state.failure is None


async def test_its_output_is_ours_line_by_line_and_its_last_line_is_the_reason(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = "import sys; sys.stdout.write('[Nov 22] [ERROR] not in the list'); sys.exit(3)"
    async with supervised(*python(lines)) as rig:
        rig.supervisor.want()
        await until(lambda: rig.ends)
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.reason is Reason.DAEMON_NOT_READY
        assert "exit code 3; it said last: not in the list" in failure.message
    assert capfdbinary.readouterr().out.startswith(b"[Nov 22] [ERROR] not in the list\n")


async def test_a_program_that_is_not_there_is_a_reason_and_is_tried_again() -> None:
    async with supervised("/nowhere/nvidia-imex") as rig:
        rig.supervisor.want()
        await until(lambda: len(rig.ends) > 1)
        failure = rig.supervisor.state.failure
        assert failure is not None
        assert failure.reason is Reason.IMEX_BINARY_MISSING
        assert "/nowhere/nvidia-imex cannot be run" in failure.message
        assert set(rig.ends) == {"refused"}


async def test_a_file_that_is_no_program_is_as_good_as_none(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-imex"
    program.write_text("no program")
    for mode in (0o644, 0o755):
        program.chmod(mode)
        with pytest.raises(DriverError) as refused:
            await Child.start((str(program),))
        assert refused.value.reason is Reason.IMEX_BINARY_MISSING


async def test_it_is_not_started_before_its_files_are_there() -> None:
    async with supervised(*SLEEP) as rig:
        rig.obstacle = RetryableError(Reason.DAEMON_NOT_READY, "no template")
        rig.supervisor.want()
        await until(lambda: rig.ends == ["refused"])
        assert rig.supervisor.state.failure is rig.obstacle
        rig.obstacle = None
        await until(is_up(rig))


async def test_a_child_that_is_to_rest_ends_and_comes_back_when_it_is_wanted() -> None:
    async with supervised(*SLEEP) as rig:
        rig.supervisor.want()
        await until(is_up(rig))
        rig.supervisor.rest()
        await until(lambda: rig.supervisor.state.phase is Phase.DOWN)
        assert rig.supervisor.state.failure is None
        rig.supervisor.want()
        await until(is_up(rig, run=2), 2)
        assert rig.ends == []


async def test_a_child_that_is_stale_makes_way_for_another() -> None:
    async with supervised(*SLEEP) as rig:
        rig.supervisor.want()
        await until(is_up(rig))
        rig.supervisor.restart()
        await until(is_up(rig, run=2), 2)
        assert rig.ends == ["replaced"]
        assert rig.supervisor.state.failure is None


async def test_a_child_that_has_only_begun_is_not_killed_by_the_signal_to_read_again(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    async with supervised(*python(DEAF_AT_FIRST)) as rig:
        rig.supervisor.want()
        await until(is_up(rig))
        rig.supervisor.reread()  # now the signal would end it
        out = b""
        async with asyncio.timeout(10):
            while b"read again\n" not in out:
                out += capfdbinary.readouterr().out
                await asyncio.sleep(0.02)
        assert rig.supervisor.state.run == 1
        assert rig.ends == []


async def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "TERM_S", 0.3)
    async with supervised(*python(STUBBORN)) as rig:
        rig.supervisor.want()
        await until(is_up(rig))
        pid = rig.supervisor.state.pid
        await until(lambda: _ignores_term(pid))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_grandchild_that_holds_the_output_open_does_not_hide_the_end() -> None:
    lines = "import os, sys, time\nif os.fork() == 0: time.sleep(3)\nelse: os._exit(4)"
    async with supervised(*python(lines)) as rig:
        rig.supervisor.want()
        await until(lambda: rig.ends == ["exit"], 2)


def _ignores_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


async def test_signals_are_heard_only_with_a_handler() -> None:
    child = await Child.start(SLEEP)
    try:
        assert not child.hears(REREAD)
    finally:
        await child.close()
    assert await child.ended() == -signal.SIGKILL
    child.send(REREAD)  # nobody is there to get it
