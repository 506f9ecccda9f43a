# SPDX-License-Identifier: Apache-2.0
"""One MPS control daemon, as the command line of `nvdra-gpu-plugin mps-daemon` describes it."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_gpu_plugin.devices import mps_layout

_PROGRAM_DIRS: Final = ("usr/bin", "bin", "usr/local/bin")
_LIBRARY_DIRS: Final = ("lib64", "lib", "usr/lib64", "usr/lib", "usr/lib/x86_64-linux-gnu")


def has_shell(driver_root: Path) -> bool:
    """Whether a driver root is a whole system, in which programs find what they need."""
    return any((driver_root / each).exists() for each in ("bin/sh", "usr/bin/sh"))


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon: the flags of the command, by their names.

    Attributes:
        driver_root: The node's driver root. If it has a shell, everything runs inside of it.
        directory: The daemon's directory, with the files of `mps_layout`.
        pipe_directory: `CUDA_MPS_PIPE_DIRECTORY`; below the driver root if that has a shell.
        log_directory: `CUDA_MPS_LOG_DIRECTORY`, likewise.
        ready_file: Exists while this daemon is ready: what the kubelet's probe reads.
        run: Nothing starts unless the directory names the same.
        thread_percentage: Share of the threads that each client may use; None for all.
        memory_limits: Memory limit of each client, such as `1024M`, by the index of the device
            among those of the daemon.
        grace_period_s: How long the kubelet lets the pod live after SIGTERM.
    """

    driver_root: Path
    directory: Path
    pipe_directory: Path
    log_directory: Path
    ready_file: Path
    run: str
    is_multi_user: bool = False
    thread_percentage: int | None = None
    memory_limits: tuple[tuple[str, str], ...] = ()
    grace_period_s: int = 0

    @property
    def is_allowed(self) -> bool:
        """Whether it may run now: the plugin has prepared the claim in this boot, and keeps it."""
        if (self.directory / mps_layout.STOP).exists():
            return False
        try:
            return (self.directory / mps_layout.RUN).read_text() == self.run and (
                self.directory / mps_layout.SHM
            ).is_mount()
        except OSError:
            return False

    @property
    def prefix(self) -> tuple[str, ...]:
        """What runs a program of the driver."""
        is_inside = has_shell(self.driver_root) and self.pipe_directory.is_relative_to(
            self.driver_root
        )
        return ("chroot", str(self.driver_root)) if is_inside else ()

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables of the driver's programs."""
        if self.prefix:
            inside = {
                "CUDA_MPS_PIPE_DIRECTORY": self._inside(self.pipe_directory),
                "CUDA_MPS_LOG_DIRECTORY": self._inside(self.log_directory),
            }
            return {**given, **inside}
        programs = [str(self.driver_root / each) for each in _PROGRAM_DIRS]
        libraries = [str(self.driver_root / each) for each in _LIBRARY_DIRS]
        return {
            **given,
            "PATH": ":".join((*programs, given.get("PATH", os.defpath))),
            "LD_LIBRARY_PATH": ":".join((*libraries, given.get("LD_LIBRARY_PATH", ""))).rstrip(":"),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
        }

    def _inside(self, path: Path) -> str:
        """A path as programs see it whose root is the driver root."""
        return f"/{path.relative_to(self.driver_root)}"


def parse(arguments: Sequence[str]) -> Daemon:
    """The daemon that the command line describes."""
    parser = argparse.ArgumentParser(
        prog="nvdra-gpu-plugin mps-daemon",
        description="Runs an MPS control daemon for a claim. The plugin creates its Deployment.",
    )
    for flag in ("driver-root", "directory", "pipe-directory", "log-directory", "ready-file"):
        parser.add_argument(f"--{flag}", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--multi-user", action="store_true")
    parser.add_argument("--thread-percentage", type=int)
    parser.add_argument("--memory-limit", action="append", default=[], metavar="INDEX=LIMIT")
    parser.add_argument("--grace-period", type=int, default=0, metavar="SECONDS")
    found = parser.parse_args(arguments)
    return Daemon(
        found.driver_root,
        found.directory,
        found.pipe_directory,
        found.log_directory,
        found.ready_file,
        found.run,
        found.multi_user,
        found.thread_percentage,
        tuple((index, limit) for index, _, limit in (e.partition("=") for e in found.memory_limit)),
        found.grace_period,
    )
