# SPDX-License-Identifier: Apache-2.0
"""How long a look for the processes that have a GPU open takes: `python -m bench.holders`.

It starts processes that have descriptors open as on a busy node, half of them sockets, and prints
how many there are in all, and the look's median time beside that of reading their names alone.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import holders
from nvdra_gpu_plugin.passthrough.holders import DeviceNodes
from nvdra_runtime.node.host import Host

DESCRIPTORS, PROCESSES, LOOKS = 20_000, 40, 9
GPU = DeviceNodes(PciAddress("0000:3b:00.0"), {"195:0": "/dev/nvidia0"}, 0)

HOLD = """
import os, resource, socket, sys
count = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 64,) * 2)
kept = [socket.socket() for _ in range(count // 2)]
kept += [os.open("/etc/passwd", os.O_RDONLY) for _ in range(count - len(kept))]
print(flush=True)
sys.stdin.read()
"""


def main() -> None:
    """Print the figures."""
    host = Host()
    with _processes():
        count = _names()
        busy = _children_s()
        look = _median(lambda: holders.find(host, [GPU], timeout_s=60.0))
        busy = (_children_s() - busy) / LOOKS
        names = _median(_names)
    print(f"{count} descriptors of {len(_pids())} processes")
    print(f"look for holders: {look * 1000:.0f} ms, {look / names:.1f} x the names alone")
    print(f"of which a processor is busy: {busy * 1000:.0f} ms, with the start of the program")


@contextmanager
def _processes() -> Iterator[None]:
    command = [sys.executable, "-I", "-S", "-c", HOLD, str(DESCRIPTORS // PROCESSES)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.communicate()


def _median(run: Callable[[], object]) -> float:
    durations = []
    for _ in range(LOOKS):
        start = time.perf_counter()
        run()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def _children_s() -> float:
    """The processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _names() -> int:
    """Read the names of all descriptors, and return how many there are."""
    count = 0
    for pid in _pids():
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
                count += 1
        except OSError:  # it has ended, or closed it
            continue
    return count


def _pids() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]


if __name__ == "__main__":
    main()
