# SPDX-License-Identifier: Apache-2.0
"""Pytest fixture: MPS daemons of a simulated node, and processes that compute with CUDA.

Import `mps` in a `conftest.py`. Everything that it starts ends with the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nvdra_sim.testing.node_fixtures import SimulatedNode, installed

TIMEOUT_S = 20.0
"""A process that has not answered by then hangs."""

CUDA_PROGRAM = """
import ctypes, json, sys

cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_size_t()
free, total, number = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()

def init():
    return [cuda.cuInit(0)]

def create(device=0):
    return [cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)]

def destroy():
    return [cuda.cuCtxDestroy_v2(context)]

def count():
    return [cuda.cuDeviceGetCount(ctypes.byref(number)), number.value]

def multiprocessors(device=0):
    return [cuda.cuDeviceGetAttribute(ctypes.byref(number), 16, device), number.value]

def uuid(device=0):
    data = (ctypes.c_ubyte * 16)()
    return [cuda.cuDeviceGetUuid_v2(data, device), bytes(data).hex()]

def memory():
    return [cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), free.value, total.value]

def allocate(mib):
    return [cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)), address.value]

def give_back(address):
    return [cuda.cuMemFree_v2(ctypes.c_size_t(address))]

def synchronize():
    return [cuda.cuCtxSynchronize()]

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


class CudaProcess:
    """A process that makes CUDA calls one by one. Each returns its result code and its values."""

    def __init__(self, environment: Mapping[str, str], user: int | None = None) -> None:
        self._process = subprocess.Popen(
            ["python3", "-c", CUDA_PROGRAM],
            env=dict(environment),
            user=user,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, function: str, *arguments: int) -> None:
        """Begins a call whose answer `answer` waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[Any]:
        """The answer to the oldest call."""
        assert self._process.stdout is not None
        return list(json.loads(self._process.stdout.readline()))

    def call(self, function: str, *arguments: int) -> list[Any]:
        """Makes a call of the functions in `CUDA_PROGRAM`."""
        self.ask(function, *arguments)
        return self.answer()

    def start(self) -> list[int]:
        """The results of cuInit and of the first context."""
        return [self.call("init")[0], self.call("create")[0]]

    def end(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)


class MpsDaemon:
    """A control daemon with directories of its own, as the driver or an administrator starts it.

    Attributes:
        pipes: The pipe directory. Its path is short, because a socket's path is at most 107 bytes.
        logs: The log directory.
        output: What a daemon in the foreground, and its servers, say.
        environment: What commands and clients of the daemon need.
    """

    def __init__(
        self, node: SimulatedNode, directory: Path, devices: str | None, **variables: str
    ) -> None:
        self.node = node
        self.pipes = directory / "pipe"
        self.logs = directory / "log"
        self.output = directory / "output"
        self.environment = {
            "PATH": os.defpath,
            **node.environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }
        self._own = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
        self._own |= variables
        self._process: subprocess.Popen[str] | None = None

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs `nvidia-cuda-mps-control` to its end."""
        return subprocess.run(
            [self.node.mps_control, *arguments],
            env={**self.environment, **self._own},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )

    def command(self, *lines: str) -> list[str]:
        """The lines that the daemon answers to these commands."""
        done = self.run(text="".join(f"{line}\n" for line in lines))
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def start(self, *arguments: str) -> None:
        """Starts it in the foreground, and waits until it answers."""
        with self.output.open("w") as output:
            self._process = subprocess.Popen(
                [self.node.mps_control, "-f", *arguments],
                env={**self.environment, **self._own},
                stdout=output,
                text=True,
            )
        wait_until(lambda: self.run(text="help\n").returncode == 0)

    @property
    def pid(self) -> int:
        """The process id that it has written down."""
        return int((self.pipes / "nvidia-cuda-mps-control.pid").read_text())

    def signal(self, number: signal.Signals) -> int:
        """Sends it a signal, and returns its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(TIMEOUT_S)

    def wait(self) -> int:
        """Waits for its end, and returns its exit status."""
        assert self._process is not None
        return self._process.wait(TIMEOUT_S)

    def log(self) -> list[str]:
        """The lines of its log, and of its servers', without time and process."""
        path = self.logs / "control.log" if self._process is None else self.output
        return [line.partition("] ")[2] for line in path.read_text().splitlines()]

    def end(self) -> None:
        """Kills it and, because they live with their daemon, its servers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        elif (self.pipes / "nvidia-cuda-mps-control.pid").exists():
            pid = self.pid
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())


class Mps:
    """Starts daemons and CUDA processes for one test."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self._directory.chmod(0o755)
        self._count = 0

    def daemon(
        self, node: SimulatedNode, *arguments: str, devices: str | None = None, **variables: str
    ) -> MpsDaemon:
        """A running daemon; `devices` are those of its CUDA_VISIBLE_DEVICES."""
        made = self.directories(node, devices=devices, **variables)
        made.start(*arguments)
        return made

    def directories(
        self, node: SimulatedNode, devices: str | None = None, **variables: str
    ) -> MpsDaemon:
        """One that has not started."""
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        made = MpsDaemon(node, directory, devices, **variables)
        self._stack.callback(made.end)
        return made

    def client(self, daemon: MpsDaemon, user: int | None = None, **variables: str) -> CudaProcess:
        """A process, of this user, that finds the daemon."""
        return self._process({**daemon.environment, **variables}, user)

    def direct(self, node: SimulatedNode, **variables: str) -> CudaProcess:
        """A process that finds no daemon."""
        nowhere = {"CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "none")}
        return self._process({"PATH": os.defpath, **node.environment, **nowhere, **variables})

    def node_for_all_users(self, profile: str) -> SimulatedNode:
        """An installed node whose files other users can read."""
        return self._stack.enter_context(installed(profile, self._directory / "node"))

    def _process(self, environment: Mapping[str, str], user: int | None = None) -> CudaProcess:
        made = CudaProcess(environment, user)
        self._stack.callback(made.end)
        return made


@pytest.fixture
def mps() -> Iterator[Mps]:
    """Starts MPS daemons and CUDA processes, which end with the test."""
    with tempfile.TemporaryDirectory(prefix="mps-") as directory, ExitStack() as stack:
        yield Mps(stack, Path(directory))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits for a condition. Raises AssertionError after `TIMEOUT_S`."""
    end = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)
