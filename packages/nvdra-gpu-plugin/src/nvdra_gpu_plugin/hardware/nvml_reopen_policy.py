# SPDX-License-Identifier: Apache-2.0
"""Decides when NVML is opened again: after a driver was replaced, or while GPUs do not work.

A GPU that was reset or plugged in again is another device to NVML. As opening NVML wakes every GPU
of the node, attempts become less and less frequent.
"""

from collections.abc import Collection
from typing import Final

from nvdra_runtime.process.backoff import Backoff

from nvdra_gpu_plugin.driver.installation import DriverInstallation
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe

_MISSING_PAUSES_S: Final = (10.0, 60.0, 180.0)
"""When NVML is opened again for a GPU that the driver's files list and NVML does not. It was away
from the bus for a moment, or the module is still starting it; what is missing after minutes stays
so until the files change."""

_REOPEN_BACKOFF: Final = Backoff(first_s=60, ceiling_s=3600)


class NvmlReopenPolicy:
    """The policy for one node.

    Attributes:
        opened_at: When NVML was last opened, in monotonic seconds.
    """

    def __init__(self) -> None:
        self.opened_at = 0.0
        self._attempts = 0
        self._missing_attempts = 0
        self._is_for_missing = self._is_for_broken = False

    def is_due(
        self,
        session: NvmlSession | None,
        probes: Collection[GpuProbe],
        found: DriverInstallation,
        now: float,
    ) -> bool:
        """Whether to open NVML now. The caller says with `begin` that it does.

        Args:
            session: The open session.
            probes: The session's GPUs.
            found: The driver that is installed now.
            now: Monotonic seconds.
        """
        self._is_for_missing = self._is_for_broken = False
        if session is None or must_open(session, found):
            return True
        if any(probe.is_overdue for probe in probes):
            return False  # a session cannot be closed during a call, and the other GPUs work
        if session.installation != found:
            self._attempts = self._missing_attempts = 0
            return True
        do_all_work = all(probe.works for probe in probes)
        if do_all_work:
            self._attempts = 0
        if session.has_all_gpus:
            self._missing_attempts = 0
        passed = now - self.opened_at
        missing = _MISSING_PAUSES_S[self._missing_attempts :]
        self._is_for_missing = not session.has_all_gpus and bool(missing) and passed >= missing[0]
        self._is_for_broken = not do_all_work and passed >= _REOPEN_BACKOFF.delay(
            self._attempts + 1, 0.0
        )
        return self._is_for_missing or self._is_for_broken

    def begin(self) -> None:
        """Count an attempt: NVML is opened because of the last answer of `is_due`."""
        self._missing_attempts += self._is_for_missing
        self._attempts += self._is_for_broken


def must_open(session: NvmlSession | None, found: DriverInstallation) -> bool:
    """Whether the session is of no use any more, whatever calls of it are in progress."""
    return session is None or session.is_lost or session.installation.library_id != found.library_id
