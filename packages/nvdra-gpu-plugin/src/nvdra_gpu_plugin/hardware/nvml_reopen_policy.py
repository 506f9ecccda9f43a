# SPDX-License-Identifier: Apache-2.0
"""Decides when NVML is opened again: after a driver was replaced, or while GPUs do not work.

A GPU that was reset or plugged in again is another device to NVML. As opening NVML wakes every GPU
of the node, attempts become less and less frequent. There is no clock and no call here: times are
arguments in monotonic seconds, and `gpu_session` performs the action.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from nvdra_runtime.process.backoff import Backoff

from nvdra_gpu_plugin.driver.installation import DriverInstallation
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession
from nvdra_gpu_plugin.hardware.probe_state import Status

_MISSING_PAUSES_S: Final = (10.0, 60.0, 180.0)
"""When NVML is opened again for a GPU that the driver's files list and NVML does not. It was away
from the bus for a moment, or the module is still starting it; what is missing after minutes stays
so until the files change."""

_REOPEN_BACKOFF: Final = Backoff(first_s=60, ceiling_s=3600)


class Action(Enum):
    """What is done with the session."""

    KEEP = auto()
    """Nothing: it is as good as a new one would be, or one was opened shortly before."""
    REOPEN = auto()
    """Open NVML again once the calls in progress have ended."""
    OPEN = auto()
    """Open NVML whatever calls are in progress: there is no session, or it is of no use."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often NVML was opened.

    Attributes:
        began_at: When opening it last began.
        opened_at: When it was last opened.
        for_broken: How often in a row because a GPU did not work.
        for_missing: How often in a row because a GPU was missing.
    """

    began_at: float = 0.0
    opened_at: float = 0.0
    for_broken: int = 0
    for_missing: int = 0


def plan(
    session: NvmlSession | None,
    gpus: Set[Status],
    found: DriverInstallation,
    attempts: Attempts,
    now: float,
) -> tuple[Action, Attempts]:
    """What is done with the open session now, and how often that then was.

    `gpus` is how its GPUs are, `found` the driver that is installed.
    """
    if session is None or session.is_lost or session.installation.library_id != found.library_id:
        return Action.OPEN, attempts
    if Status.OVERDUE in gpus:
        return Action.KEEP, attempts  # a call is in progress, and the other GPUs work
    if session.installation != found:
        return Action.REOPEN, replace(attempts, for_broken=0, for_missing=0)
    do_all_work, has_all = gpus <= {Status.WORKING}, session.has_all_gpus
    broken = 0 if do_all_work else attempts.for_broken
    missing = 0 if has_all else attempts.for_missing
    passed, pauses = now - attempts.opened_at, _MISSING_PAUSES_S[missing:]
    is_missing_due = not has_all and bool(pauses) and passed >= pauses[0]
    is_broken_due = not do_all_work and passed >= _REOPEN_BACKOFF.delay(broken + 1, 0.0)
    counted = replace(
        attempts, for_broken=broken + is_broken_due, for_missing=missing + is_missing_due
    )
    return Action.REOPEN if is_missing_due or is_broken_due else Action.KEEP, counted
