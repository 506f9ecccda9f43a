# SPDX-License-Identifier: Apache-2.0
"""Runs strace: records the system calls of threads, sends a signal at one, lets calls fail.

`attach` is for running threads, `launch_command` traces a process from its first call on. SIGKILL
is delivered on entry to the call, which then does not happen; SIGTERM and SIGSTOP are delivered
after the call. Calls are counted per thread, and if paths are given, only those on these paths. The
meaning of calls is known to `crash_campaigns`.
"""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

ATTACH_S = 10
MAIN = "main"
"""The name that is used for a process's first thread."""
STRINGS = 8192
"""The longest data that strace prints, in bytes; answers to the kubelet are shorter."""

_LINE = re.compile(r"(?:(?P<tid>\d+)\s+)?(?P<name>[a-z]\w*)\((?P<arguments>.*)")
_CUT = re.compile(r"(?:(?P<tid>\d+)\s+)?<\.\.\. \w+ resumed>.*= \?")
_NAMED = re.compile(r'\d+</proc/\d+/task/(?P<tid>\d+)/comm>, "(?P<name>[^"]*)"')
_INJECTED = re.compile(r"(?:(?P<tid>\d+)\s+)?--- SIG(?:TERM|STOP) \{.*SI_KERNEL.*")
_PATH = re.compile(r'[(, ]"(?P<path>/[^"]*)"|<(?P<file>/[^>]*)>')
_DATA = re.compile(r'(?:iov_base=|^\d+<[^"]*>, )"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Call:
    """One system call, as strace prints its entry.

    Attributes:
        tid: The thread.
        thread: The thread's name.
        name: The name of the call.
        arguments: As printed, with descriptors decoded: `8</a/state.sqlite>, "…"`.
        is_fatal: Whether the process was killed on entry, or got another injected signal.
    """

    tid: int
    thread: str
    name: str
    arguments: str
    is_fatal: bool

    @property
    def data(self) -> bytes:
        """The data that the call sends."""
        pieces = _DATA.findall(self.arguments)
        return b"".join(
            piece.encode("latin1").decode("unicode_escape").encode("latin1") for piece in pieces
        )


@dataclass(frozen=True)
class InjectedSignal:
    """A signal, and the call at which it is sent.

    Attributes:
        call: The name of the call.
        nth: The number of the call in its thread, from 1.
        paths: Count only calls on these files.
        signal: SIGKILL; SIGTERM to let the process shut down; SIGSTOP to make it wait.
    """

    call: str
    nth: int
    paths: Sequence[str] = ()
    signal: str = "SIGKILL"


FILE_CALLS: Final = (
    *("openat", "newfstatat", "statx", "stat", "lstat", "readlink", "readlinkat"),
    *("access", "faccessat", "faccessat2", "getdents64", "read", "pread64"),
)
"""The calls by which a process looks at files and reads them."""

WRITE_CALLS: Final = ("write", "pwrite64", "writev", "pwritev", "fallocate", "ftruncate")
"""The calls by which files grow."""


@dataclass(frozen=True)
class InjectedError:
    """An error that calls on files return instead of being carried out.

    Attributes:
        error: Its name, such as `EIO`.
        paths: The files; a directory stands for itself, not for what is in it.
        when: Which calls of each thread fail, in strace's form: `1+` for all, `2+3` for every third
            one from the second on.
        calls: The calls that fail.
    """

    error: str
    paths: Sequence[str]
    when: str = "1+"
    calls: Sequence[str] = FILE_CALLS


@dataclass
class Tracer:
    """A strace process, running or ended."""

    process: "subprocess.Popen[bytes]"
    log: Path
    names: Mapping[int, str] = field(default_factory=dict)

    def detach(self) -> list[Call]:
        """Detach from the process if it still runs, and return the recorded calls."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        return parse(self.log.read_text(errors="replace"), self.names)


def threads(pid: int) -> dict[int, str]:
    """The names of a process's threads by thread id."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError
        ):  # the thread has just ended
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found


@contextlib.contextmanager
def attach(
    log: Path,
    tids: Mapping[int, str],
    calls: Sequence[str],
    kill: InjectedSignal | None = None,
    *,
    is_following: bool = False,
    has_programs: bool = True,
) -> Iterator[Tracer]:
    """Trace these threads while the block runs, and with `is_following` also new ones.

    Without `has_programs` the programs that the process starts are not followed.
    """
    targets = [f"--attach={tid}" for tid in tids]
    follow = ["--follow-forks"] if is_following else []
    if not has_programs:
        follow.append("--detach-on=execve")
    argv = ["strace", *_options(log, calls, kill), *follow, *targets]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tracer = Tracer(process, log, tids)
    try:
        _wait_attached(process, tids)
        yield tracer
    finally:
        tracer.detach()


@contextlib.contextmanager
def fail_calls(log: Path, tids: Mapping[int, str], injected: InjectedError) -> Iterator[None]:
    """Let calls of these threads, and of those that they start, fail while the block runs."""
    argv = [
        "strace",
        f"--output={log}",
        "--decode-fds=path",
        f"--trace={','.join(injected.calls)}",
        f"--inject={','.join(injected.calls)}:error={injected.error}:when={injected.when}",
        *(f"--trace-path={path}" for path in injected.paths),
        "--follow-forks",
        *(f"--attach={tid}" for tid in tids),
    ]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tracer = Tracer(process, log, tids)
    try:
        _wait_attached(process, tids)
        yield
    finally:
        tracer.detach()


def injected_paths(log: Path) -> set[str]:
    """The paths at which a call failed because an error was injected."""
    lines = log.read_text(errors="replace").splitlines()
    return {
        found["path"]
        for line in lines
        if line.endswith("(INJECTED)") and (found := _PATH.search(line))
    }


def launch_command(
    log: Path,
    calls: Sequence[str],
    kill: InjectedSignal | None = None,
    *,
    is_following: bool = True,
) -> list[str]:
    """The command to put before a program.

    Without `is_following` only the first thread is traced.
    """
    follow = ["--follow-forks"] if is_following else []
    return ["strace", *_options(log, calls, kill), *follow]


def was_signal_injected(log: Path) -> bool:
    """Whether a signal that does not kill was sent."""
    return any(map(_INJECTED.fullmatch, log.read_text(errors="replace").splitlines()))


def parse(text: str, names: Mapping[int, str]) -> list[Call]:
    """The calls in strace's output, in the order in which they began.

    Args:
        text: The content of strace's output file.
        names: The names of the threads that were attached to; empty for a launched program, whose
            threads have the names that they set themselves. The first thread is `main`.
    """
    lines = text.splitlines()
    begun = [found for line in lines if (found := _LINE.fullmatch(line))]
    first = int(begun[0]["tid"] or 0) if begun else 0
    known = dict(names) or {first: MAIN}
    for call in begun:
        if named := _NAMED.match(call["arguments"]):
            known[int(named["tid"])] = named["name"]
    only = next(iter(known))  # the output for a single thread has no thread ids
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
    """Mark the last call of a thread, whose entry and end are on different lines."""
    last = max(at for at, call in enumerate(calls) if call.tid == tid)
    calls[last] = replace(calls[last], is_fatal=True)


def _options(log: Path, calls: Sequence[str], kill: InjectedSignal | None) -> list[str]:
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
            assert process.poll() is None, "strace ended before it was attached"
            assert time.monotonic() < deadline, f"strace does not attach to thread {tid}"
            time.sleep(0.002)


def _tracer_of(tid: int) -> int | None:
    """The tracer of a thread, 0 for none; None if the thread has ended."""
    try:
        status = Path(f"/proc/{tid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(status.partition("TracerPid:")[2].split()[0])
