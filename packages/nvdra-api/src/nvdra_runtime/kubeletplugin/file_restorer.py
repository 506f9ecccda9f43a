# SPDX-License-Identifier: Apache-2.0
"""Restores files of the plugin that were removed from the node.

These are CDI specs, the CDI hook and the instance lock. `socket_server` restores the sockets.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 5.0
"""A pod that starts while a file is missing fails, and the kubelet starts it again."""

FileCheck = Callable[[], None]
"""Restores a file if it is missing; raises if it cannot."""

CheckErrors = tuple[type[Exception], ...]
"""The exceptions that a check may raise; any other one is a bug."""


class FileRestorer:
    """Runs its checks periodically.

    Attributes:
        problem: What cannot be restored; empty if no file is missing.
    """

    def __init__(self, files: Worker, checks: tuple[FileCheck, ...], failures: CheckErrors) -> None:
        self.problem = ""
        self._files = files
        self._checks = checks
        self._failures = failures

    async def run(self) -> None:
        """Run the checks until cancelled.

        Raises:
            DriverError: Another instance has locked a new lock file first.
        """
        while True:
            await asyncio.sleep(_INTERVAL_S)
            problems = [await self._run_check(check) for check in self._checks]
            problem = "; ".join(filter(None, problems))
            if problem and problem != self.problem:
                LOG.error("A file of the plugin was removed and cannot be restored", error=problem)
            self.problem = problem

    async def _run_check(self, check: FileCheck) -> str:
        with background_tasks.contain("A file of the plugin cannot be checked") as contained:
            try:
                await self._files.run(check)
            except self._failures as error:
                return str(error)
        return "" if contained.error is None else f"a bug: {type(contained.error).__name__}"
