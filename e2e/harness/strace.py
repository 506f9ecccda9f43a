"""strace, as tests use it: note the calls of a process's threads, or strike it at one of them.

`attached` is for threads that run, `launching` for a process from its first call on. An injected
SIGKILL arrives on the way into the call, which then does not happen; SIGTERM and SIGSTOP arrive
when the call has been made. Counts are per thread, and with paths given, only of calls on those.
Nothing here knows what a call means: see `campaign`.
"""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ATTACH_S = 10
MAIN = "main"
"""What a process's first thread is called here."""
STRINGS = 8192
"""Longest piece of data that is printed whole, in bytes: no answer to the kubelet is longer."""

_LINE = re.compile(r"(?:(?P<tid>\d+)\s+)?(?P<name>[a-z]\w*)\((?P<arguments>.*)")
_CUT = re.compile(r"(?:(?P<tid>\d+)\s+)?<\.\.\. \w+ resumed>.*= \?")
_NAMED = re.compile(r'\d+</proc/\d+/task/(?P<tid>\d+)/comm>, "(?P<name>[^"]*)"')
_INJECTED = re.compile(r"(?:(?P<tid>\d+)\s+)?--- SIG(?:TERM|STOP) \{.*SI_KERNEL.*")
_DATA = re.compile(r'(?:iov_base=|^\d+<[^"]*>, )"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Call:
    """One system call, as strace saw it on its way in.

    Attributes:
        tid: The thread.
        thread: Its name.
        name: Of the call.
        arguments: As printed, descriptors with what they stand for: `8</a/state.sqlite>, "…"`.
        is_fatal: The process died on the way into it, or got another signal of ours in it.
    """

    tid: int
    thread: str
    name: str
    arguments: str
    is_fatal: bool

    @property
    def data(self) -> bytes:
        """What it would send."""
        pieces = _DATA.findall(self.arguments)
        return b"".join(
            piece.encode("latin1").decode("unicode_escape").encode("latin1") for piece in pieces
        )


@dataclass(frozen=True)
class Kill:
    """Where to kill.

    Attributes:
        call: Name of the call.
        nth: Which one of its thread, from 1.
        paths: Count only calls on these files.
        signal: SIGKILL; or SIGTERM to have the process end itself, or SIGSTOP to have it wait.
    """

    call: str
    nth: int
    paths: Sequence[str] = ()
    signal: str = "SIGKILL"


@dataclass
class Tracer:
    """A strace that runs, or has run."""

    process: "subprocess.Popen[bytes]"
    log: Path
    names: Mapping[int, str] = field(default_factory=dict)

    def end(self) -> list[Call]:
        """Let go of the process, should it still run; what was seen."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        return parse(self.log.read_text(errors="replace"), self.names)


def threads(pid: int) -> dict[int, str]:
    """Names of a process's threads by their ids."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found


@contextlib.contextmanager
def attached(
    log: Path,
    tids: Mapping[int, str],
    calls: Sequence[str],
    kill: Kill | None = None,
    *,
    is_following: bool = False,
) -> Iterator[Tracer]:
    """Watch these threads, by id and name, while the block runs; with those they make, perhaps."""
    targets = [f"--attach={tid}" for tid in tids]
    follow = ["--follow-forks"] if is_following else []
    argv = ["strace", *_options(log, calls, kill), *follow, *targets]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tracer = Tracer(process, log, tids)
    try:
        _wait_attached(process, tids)
        yield tracer
    finally:
        tracer.end()


def launching(
    log: Path, calls: Sequence[str], kill: Kill | None = None, *, is_following: bool = True
) -> list[str]:
    """What to put before a program's name; without `is_following`, only its first thread counts."""
    follow = ["--follow-forks"] if is_following else []
    return ["strace", *_options(log, calls, kill), *follow]


def is_struck(log: Path) -> bool:
    """Has a signal been injected that the process survives?"""
    return any(map(_INJECTED.fullmatch, log.read_text(errors="replace").splitlines()))


def parse(text: str, names: Mapping[int, str]) -> list[Call]:
    """The calls in an output, in the order of their beginning.

    Args:
        text: Of strace's output file.
        names: Threads that were there before. None for a launched program: its threads have the
            names that they gave themselves, the first one is `main`, others are nameless.
    """
    lines = text.splitlines()
    begun = [found for line in lines if (found := _LINE.fullmatch(line))]
    first = int(begun[0]["tid"] or 0) if begun else 0
    known = dict(names) or {first: MAIN}
    for call in begun:
        if named := _NAMED.match(call["arguments"]):
            known[int(named["tid"])] = named["name"]
    only = next(iter(known))  # a single thread's output does not say which it is
    calls: list[Call] = []
    for line in lines:
        if found := _LINE.fullmatch(line):
            tid, arguments = int(found["tid"] or only), found["arguments"]
            is_fatal = arguments.endswith("= ?")
            calls.append(Call(tid, known.get(tid, ""), found["name"], arguments, is_fatal))
        elif found := _CUT.fullmatch(line) or _INJECTED.fullmatch(line):
            _mark_fatal(calls, int(found["tid"] or only))
    return calls


def _mark_fatal(calls: list[Call], tid: int) -> None:
    """Another thread's line came between the beginning of the thread's last call and its end."""
    last = max(at for at, call in enumerate(calls) if call.tid == tid)
    calls[last] = replace(calls[last], is_fatal=True)


def _options(log: Path, calls: Sequence[str], kill: Kill | None) -> list[str]:
    options = [
        f"--output={log}",
        f"--string-limit={STRINGS}",
        "--decode-fds=all",
        f"--trace={','.join(calls)}",
    ]
    if kill is not None:
        options.append(f"--inject={kill.call}:signal={kill.signal}:when={kill.nth}")
        options += [f"--trace-path={path}" for path in kill.paths]
    return options


def _wait_attached(process: "subprocess.Popen[bytes]", tids: Mapping[int, str]) -> None:
    deadline = time.monotonic() + ATTACH_S
    for tid in tids:
        while _tracer_of(tid) not in (process.pid, None):
            assert process.poll() is None, "strace ended before it had attached"
            assert time.monotonic() < deadline, f"strace does not attach to thread {tid}"
            time.sleep(0.002)


def _tracer_of(tid: int) -> int | None:
    """Who traces the thread, 0 for nobody; None when it has ended."""
    try:
        status = Path(f"/proc/{tid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(status.partition("TracerPid:")[2].split()[0])
