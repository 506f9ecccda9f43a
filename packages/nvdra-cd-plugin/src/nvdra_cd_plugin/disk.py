"""The thread for files, for who has a deadline: a disk that hangs keeps nobody past it."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from nvdra_api.runtime.process.worker import Worker
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_cdi.errors import FileError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Disk:
    """One thread on which files are read and written, in order."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def run(self, deadline: float, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """What the function returns.

        Raises:
            RetryableError: `DeadlineExceeded`: the disk hangs. `StateUnavailable`: it refuses.
        """
        try:
            return await self._worker.run(function, *arguments, deadline=deadline)
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "the files of this claim are still being read or written",
                "see whether the disks of the plugin's directory and of --cdi-root answer",
            ) from error
        except (FileError, OSError) as error:
            raise RetryableError(
                Reason.STATE_UNAVAILABLE,
                str(error),
                "see the disks of the plugin's directory and of --cdi-root",
            ) from error
