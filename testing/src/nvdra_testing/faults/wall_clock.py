# SPDX-License-Identifier: Apache-2.0
"""A wall clock for one process that a test can move, as `date -s` does for a whole node.

The process preloads a library that adds an offset to every reading of the time of day; the test
changes the offset. Monotonic time is not changed, as in the kernel.
"""

import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void look(void) {
  const char *path = getenv("WALL_OFFSET");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) offset = page;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = syscall(SYS_clock_gettime, clock, at);
  if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    at->tv_sec += *offset;
  return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


@dataclass(frozen=True)
class WallClock:
    """The clock, created by `compile_clock`.

    Attributes:
        environ: The environment variables of the process.
    """

    environ: Mapping[str, str]
    _offset: Path

    def jump(self, seconds: int) -> None:
        """Set the difference from the real time."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


def compile_clock(directory: Path) -> WallClock:
    """Compile the library below `directory`; it shows the real time at first."""
    source, library, offset = (directory / name for name in ("wall.c", "wall.so", "wall.offset"))
    source.write_text(SOURCE)
    offset.write_bytes(struct.pack("=q", 0))
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True
    )
    return WallClock({"LD_PRELOAD": str(library), "WALL_OFFSET": str(offset)}, offset)
