# SPDX-License-Identifier: Apache-2.0
"""The thread for files, with a deadline: a disk that hangs delays no call beyond it."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from nvdra_api.errors import Reason, RetryableError
from nvdra_cdi.errors import CDIError
from nvdra_runtime.process.worker import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class FileWorker:
    """Reads and writes files on one thread, in order."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def run(self, deadline: float, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call the function on the thread and return its result.

        Raises:
            RetryableError: `DeadlineExceeded`: the disk hangs. `StateUnavailable`: the file system
                refused.
        """
        try:
            return await self._worker.run(function, *arguments, deadline=deadline)
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "the files of this claim are still being read or written",
                "check whether the disks of the plugin's directory and of --cdi-root respond",
            ) from error
        except (CDIError, OSError) as error:
            raise RetryableError(
                Reason.STATE_UNAVAILABLE,
                str(error),
                "check the disks of the plugin's directory and of --cdi-root",
            ) from error
