# SPDX-License-Identifier: Apache-2.0
"""Log records with fields: what every module logs with. `telemetry.logs` formats and writes them.

It is in the lowest room, because every other one logs. Standard library only.
Source: docs/reference/tracing.md, "Logs".
"""

import logging
from collections.abc import Mapping
from typing import Final

from nvdra_api.errors import DriverError

FIELDS_ATTRIBUTE: Final = "nvdra_facts"
"""The attribute of a `logging.LogRecord` that has the fields."""


class Logger:
    """Logs messages with fields: `LOG.v(2, "Prepared the claim", devices=names)`.

    A field is any JSON value; other values are written as their `str`. A `logging.Logger` with
    `extra={…}` writes the same lines.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def is_enabled(self, verbosity: int) -> bool:
        """Whether records of this verbosity are written."""
        return self._logger.isEnabledFor(logging.INFO - verbosity)

    def v(self, verbosity: int, message: str, /, **fields: object) -> None:
        """Log at this verbosity."""
        self.write(logging.INFO - verbosity, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """Log what an operator sees at every verbosity."""
        self.write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a problem that does not stop the component's work."""
        self.write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Log a failure."""
        self.write(logging.ERROR, message, fields)

    def failure(self, message: str, error: BaseException, /, **fields: object) -> None:
        """Log an exception: the reason of a `DriverError`, the stack trace of any other."""
        self.write(logging.ERROR, message, fields, error)

    def write(
        self,
        level: int,
        message: str,
        fields: Mapping[str, object],
        error: BaseException | None = None,
        *,
        caller: int = 3,
    ) -> None:
        """Log at a level of the standard library.

        Args:
            level: `logging.INFO - v` for a verbosity.
            message: What happened.
            fields: Values by name.
            error: A `DriverError` adds its reason and message, any other its stack trace.
            caller: Number of frames up to the call that the record names (`stacklevel`).
        """
        if not self._logger.isEnabledFor(level):
            return
        if isinstance(error, DriverError):
            fields = {**fields, "reason": error.reason.value, "error": error.message}
            error = None
        extra = {FIELDS_ATTRIBUTE: fields}
        self._logger.log(level, message, exc_info=error, extra=extra, stacklevel=caller)


def logger(name: str) -> Logger:
    """The logger of one module: `LOG = log_records.logger(__name__)`."""
    return Logger(name)
