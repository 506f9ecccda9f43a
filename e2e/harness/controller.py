"""nvdra-cd-controller as a process of its own, beside a real API server."""

import asyncio
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ports
from apiserver import ApiServer


@dataclass
class Controller:
    """One running controller.

    Attributes:
        process: The process.
        log: What it wrote to stderr.
        http: Address of its probes and metrics.
        debug: Address of its debug endpoint.
    """

    process: "subprocess.Popen[bytes]"
    log: Path
    http: str
    debug: str

    def get(self, path: str, *, debug: bool = False) -> str:
        """What one of its endpoints answers."""
        with urllib.request.urlopen(f"http://{self.debug if debug else self.http}{path}") as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Does it say that it is ready?"""
        try:
            self.get("/readyz")
        except OSError:
            return False
        return True

    def metric(self, series: str) -> float:
        """The value of one series, such as `name{label="x"}`; 0 where there is none."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 20)


@contextmanager
def started(
    server: ApiServer,
    directory: Path,
    namespace: str,
    *flags: str,
    name: str = "controller-0",
    kubeconfig: Path | None = None,
    variables: Mapping[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "nvdra_cd_controller"),
) -> Iterator[Controller]:
    """A controller for a driver that is installed in `namespace`; killed when the block is left."""
    http, debug = (f"127.0.0.1:{port}" for port in ports.free(2))
    log = directory / f"{name}.log"
    argv = [
        *program,
        f"--pod-name={name}",
        f"--namespace={namespace}",
        "--image-name=registry.example.com/daemon:1",
        "--log-verbosity-cd-daemon=4",
        f"--kubeconfig={kubeconfig or server.kubeconfig}",
        f"--http-endpoint={http}",
        f"--debug-endpoint={debug}",
        "--node-name=node-of-controller",
        "-v=4",
        *flags,
    ]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1", **(variables or {})}
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, env=environment)
    try:
        yield Controller(process, log, http, debug)
    finally:
        process.kill()
        process.wait()
