# SPDX-License-Identifier: Apache-2.0
"""The directory of an MPS control daemon on the node, as the plugin uses it.

The plugin says by files what is to run, and the kernel says by a lock what runs: it is held until
the last process of the daemon has ended, however it ends. So whether a daemon runs needs neither
the API server nor the kubelet. These calls block: they run on the thread for files.
Source: docs/decisions/gpu-plugin.md, "How does the plugin know whether an MPS daemon runs?".
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nvdra_api import json_text
from nvdra_api.ids import ClaimUID
from nvdra_runtime.node import open_file_lock
from nvdra_runtime.node.files import fsync_directory, write_atomic

from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.mps import directory_removal, mounts
from nvdra_gpu_plugin.mps.user_waits import UserWait

_MODE: Final = 0o755
_ID_DIGITS: Final = 10
"""Of a user's ID, which has 32 bits."""


@dataclass(frozen=True, slots=True)
class DaemonDirectory:
    """One daemon's directory.

    Attributes:
        path: The same here and on the node.
    """

    path: Path

    def allow(self, run: str, step: str, shm_kib: int) -> None:
        """Let this run of the daemon start, and no other one.

        Args:
            run: What the command of the daemon names.
            step: The step of the claim's record, as JSON.
            shm_kib: How much shared memory its clients may have.

        Raises:
            OSError: A file cannot be written, or a tmpfs cannot be mounted.
        """
        for name in (mps_layout.PIPE, mps_layout.SHM, mps_layout.LOG):
            (self.path / name).mkdir(_MODE, parents=True, exist_ok=True)
        self._mount(shm_kib)
        if self._read(mps_layout.STEP) != step:
            write_atomic(self.path / mps_layout.STEP, step.encode())
        if self._read(mps_layout.RUN) != run:
            write_atomic(self.path / mps_layout.RUN, run.encode())
        (self.path / mps_layout.STOP).unlink(missing_ok=True)

    def _mount(self, shm_kib: int) -> None:
        """Mount what is not mounted. A second mount would hide the first one from clients.

        An earlier version of the plugin mounts no `pipe`: where `shm` is mounted, clients and a
        daemon of that version may use the directory itself, and keep it until the claim ends or
        the node boots.
        """
        pipe, shm = self.path / mps_layout.PIPE, self.path / mps_layout.SHM
        if shm.is_mount():
            return
        if not pipe.is_mount():
            mounts.mount_pipe(pipe)
        mounts.mount_shm(shm, shm_kib)  # last: the daemon waits for it

    def forbid(self) -> None:
        """Let no daemon run here. One that runs ends soon; it is on the disk when this returns.

        Raises:
            OSError: The file cannot be written.
        """
        if not self.path.exists() or self.is_forbidden:
            return
        write_atomic(self.path / mps_layout.STOP, b"")

    @property
    def is_forbidden(self) -> bool:
        """Whether no daemon may run here."""
        return (self.path / mps_layout.STOP).exists()

    @property
    def is_locked(self) -> bool:
        """Whether a process of a daemon lives.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            descriptor = os.open(self.path / mps_layout.LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return open_file_lock.is_held(descriptor)
        finally:
            os.close(descriptor)

    def is_ready(self, run: str) -> bool:
        """Whether this run of the daemon lives, and has the settings that its command names.

        Raises:
            OSError: A file cannot be read.
        """
        if self.is_forbidden or not (self.path / mps_layout.SHM).is_mount():
            return False
        try:
            said: Any = json_text.parse(self._read(mps_layout.READY) or "null")
        except ValueError:
            return False
        return isinstance(said, dict) and said.get("run") == run and self.is_locked

    @property
    def user_wait(self) -> UserWait | None:
        """Which user waits for which, if one has waited for long.

        Raises:
            OSError: The file cannot be read.
        """
        words = self._read(mps_layout.WAITING).split()
        if len(words) != len(UserWait._fields) or not all(map(str.isdecimal, words)):
            return None
        waiting, serving = (int(word[:_ID_DIGITS]) for word in words)
        return UserWait(waiting, serving)

    def unmount(self) -> None:
        """Unmount what is in memory. A process that still uses it keeps it.

        Raises:
            OSError: Something is still mounted.
        """
        for name in (mps_layout.SHM, mps_layout.PIPE):
            mounts.unmount(self.path / name)

    def remove(self) -> bool:
        """Remove some of it, or all. No daemon may be able to start here any more.

        It takes a second at most, but for what unmounting takes.

        Returns:
            Whether it is gone.

        Raises:
            OSError: It cannot be removed.
        """
        self.unmount()
        (self.path / mps_layout.RUN).unlink(missing_ok=True)  # before the tombstone
        if not directory_removal.remove(self.path, last=mps_layout.STOP):
            return False
        fsync_directory(self.path.parent)
        return True

    def step(self) -> str:
        """The step of the claim's record, as JSON; empty if it is not known."""
        return self._read(mps_layout.STEP)

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""


def of_claim(plugin_dir: Path, uid: ClaimUID) -> list[DaemonDirectory]:
    """The directories of a claim's daemons, those of interrupted attempts among them."""
    return [each for each in all_of(plugin_dir) if claim_of(each.path.name) == uid]


def all_of(plugin_dir: Path) -> Iterator[DaemonDirectory]:
    """The directories of all daemons of the node.

    Raises:
        OSError: They cannot be listed.
    """
    try:
        found = sorted((plugin_dir / mps_layout.FOLDER).iterdir())
    except FileNotFoundError:
        return
    yield from (DaemonDirectory(path) for path in found if path.is_dir())


def steps_of(plugin_dir: Path, uid: ClaimUID) -> list[ShareByMps]:
    """The steps that have started a claim's daemons. One that cannot be read is left out.

    Raises:
        OSError: They cannot be listed.
    """
    found = []
    for each in of_claim(plugin_dir, uid):
        with suppress(ValueError):
            found.append(ShareByMps.model_validate_json(each.step()))
    return found


def claim_of(daemon_id: str) -> ClaimUID:
    """The claim of a daemon's ID."""
    return ClaimUID(daemon_id.rpartition("-")[0])


def memory_kib(proc: Path) -> int:
    """The node's memory, from its `meminfo`; 0 if that does not say."""
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0
