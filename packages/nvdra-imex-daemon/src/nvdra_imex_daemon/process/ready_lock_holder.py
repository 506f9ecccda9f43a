# SPDX-License-Identifier: Apache-2.0
"""Holds the lock in the domain's directory while IMEX is READY, for the plugin of this node.

Source: docs/decisions/imex-daemon.md, "What does the lock in the domain's directory say?".
"""

import os
from pathlib import Path

from nvdra_api.ids import PodUID
from nvdra_runtime.computedomain import ready_lock
from nvdra_runtime.node import open_file_lock
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)


class ReadyLockHolder:
    """The lock of one daemon.

    Attributes:
        path: The locked file.
    """

    def __init__(self, directory: Path, pod: PodUID) -> None:
        """Create it; no file is written yet."""
        self.path = directory / ready_lock.FILE
        self._directory = directory
        self._pod = pod
        self._descriptor: int | None = None

    def create_file(self) -> None:
        """Make the file, without the lock. Blocks; call it before anything says that IMEX is READY.

        Where that is impossible there is no file, and the plugin believes what the entry says.
        """
        try:
            self._descriptor = ready_lock.create(self._directory, self._pod)
        except OSError as error:
            self._give_up(error)

    def update(self, *, is_ready: bool) -> None:
        """Hold the lock if IMEX is READY, else release it. Two system calls on an open file."""
        if self._descriptor is None:
            return
        try:
            (open_file_lock.acquire if is_ready else open_file_lock.release)(self._descriptor)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        LOG.warning("The plugin cannot see whether this daemon lives", error=str(error))
        try:
            self.path.unlink(missing_ok=True)
        except OSError as failure:
            LOG.warning("No channel is given on this node", error=str(failure))
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
