# SPDX-License-Identifier: Apache-2.0
"""Structured logs: one JSON object per line, or klog's text format, with the current trace.

The standard library's logging writes them, so the records of other libraries look the same.
Verbosity is klog's: 0 is for operators, 2 is what happens to each claim, 4 adds the reasons, 6 is
for developers. Verbosity v is the level `INFO - v`.
Source: docs/reference/tracing.md, "Logs"; docs/reference/api-types.md, "Common flags and
environment".
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TextIO

from nvdra_api import terminal_text, texts

from nvdra_runtime.process.log_records import FIELDS_ATTRIBUTE, Logger, logger
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.active_span import CURRENT_SPAN

__all__ = [
    "ConfiguredLogging",
    "JsonFormatter",
    "LogFormat",
    "Logger",
    "TextFormatter",
    "attribute_fields",
    "configure",
    "logger",
]

MAX_VERBOSITY: Final = 9
"""Higher values are reduced to this one: at level 10 other libraries log whole requests."""

MAX_TEXT: Final = 8192
"""The longest text in a record: a tenant's name of megabytes is cut in the log. A message
for all 32 configs of a claim may have some KiB."""
_MAX_STACK: Final = 32_768

_OWN_LOGGERS_PREFIX: Final = "nvdra_"
_STANDARD_ATTRIBUTES: Final = frozenset(
    vars(logging.makeLogRecord({})) | {"message": None, "asctime": None, "taskName": None}
)
_CLAIM_FIELDS: Final = {
    keys.K8S_NAMESPACE_NAME: "namespace",
    keys.K8S_RESOURCECLAIM_NAME: "name",
    keys.K8S_RESOURCECLAIM_UID: "uid",
}
_encode: Final = json.JSONEncoder(default=str, ensure_ascii=False).encode


class LogFormat(StrEnum):
    """Values of `--logging-format`."""

    TEXT = "text"
    JSON = "json"


class ConfiguredLogging:
    """The logging that `configure` set up. Its verbosity can change while the process runs."""

    def __init__(self, handler: logging.Handler, verbosity: int) -> None:
        self._handler = handler
        self._verbosity = 0
        self.set_verbosity(verbosity)

    @property
    def verbosity(self) -> int:
        """The value of `-v`."""
        return self._verbosity

    def set_verbosity(self, verbosity: int) -> None:
        """Write records up to this verbosity from now on.

        Raises:
            ValueError: Negative.
        """
        if verbosity < 0:
            raise ValueError(f"verbosity must be 0 or more, not {verbosity}")
        self._verbosity = min(verbosity, MAX_VERBOSITY)
        logging.getLogger().setLevel(logging.INFO - self._verbosity)

    def close(self) -> None:
        """Undo `configure`."""
        logging.getLogger().removeHandler(self._handler)


def configure(
    format_: LogFormat, verbosity: int, component: str, stream: TextIO | None = None
) -> ConfiguredLogging:
    """Make every logger of the process write to `stream`; the default is standard error.

    Other libraries log warnings and errors only.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(component) if format_ is LogFormat.JSON else TextFormatter())
    handler.addFilter(_is_wanted)
    logging.getLogger().addHandler(handler)
    return ConfiguredLogging(handler, verbosity)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, without the end of the line."""
        fixed: dict[str, object] = {
            "time": _time(record).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": _level(record),
            "message": record.getMessage(),
            "component": self._component,
            "logger": record.name,
        }
        if record.levelno < logging.INFO:
            fixed["v"] = logging.INFO - record.levelno
        if record.exc_info:
            stack = self.formatException(record.exc_info)
            fixed["stack"] = texts.shortened(stack, _MAX_STACK)
        # `fixed` comes first for the order in the line, and last so that no field can replace it.
        return terminal_text.line(_encode({**fixed, **_span_fields(), **_fields(record), **fixed}))


class TextFormatter(logging.Formatter):
    """Formats each record as klog's header, the message, and the fields as `key="value"`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, without the end of the line. A stack trace follows on its own lines."""
        time = _time(record).strftime("%m%d %H:%M:%S.%f")
        head = f"{_level(record)[0]}{time} {record.filename}:{record.lineno}] {record.getMessage()}"
        fields = {**_fields(record), **_span_fields()}
        line = " ".join([head, *(f"{key}={_encode(value)}" for key, value in fields.items())])
        line = terminal_text.line(line)
        if record.exc_info:
            stack = texts.shortened(self.formatException(record.exc_info), _MAX_STACK)
            line = f"{line}\n{terminal_text.lines(stack)}"
        return line


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.startswith(_OWN_LOGGERS_PREFIX)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _level(record: logging.LogRecord) -> str:
    return record.levelname if record.levelno >= logging.INFO else "INFO"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    """The fields of a record: those of our `Logger`, or those of `extra`."""
    fields: Mapping[str, object] | None = getattr(record, FIELDS_ATTRIBUTE, None)
    if fields is None:
        given = vars(record).items()
        fields = {key: value for key, value in given if key not in _STANDARD_ATTRIBUTES}
    return {
        key: texts.shortened(value, MAX_TEXT) if isinstance(value, str) else value
        for key, value in fields.items()
    }


def _span_fields() -> dict[str, object]:
    """The trace, the span and the object of the current step."""
    span = CURRENT_SPAN.get()
    if span is None or span.trace is None:
        return {}
    fields: dict[str, object] = {"trace_id": span.trace, "span_id": span.id}
    if keys.K8S_RESOURCECLAIM_UID in span.subject:
        fields["kind"] = "ResourceClaim"
        for key, field in _CLAIM_FIELDS.items():
            if key in span.subject:
                fields[field] = span.subject[key]
    return fields


def attribute_fields(attributes: Mapping[str, object]) -> dict[str, object]:
    """The attributes of a span as log fields, without those that every record has."""
    return {
        key.removeprefix("nvdra."): value
        for key, value in attributes.items()
        if key not in _CLAIM_FIELDS
    }
