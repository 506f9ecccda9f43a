"""The log: one JSON object a line, or klog's text for people, with the trace of the step at work.

Underneath is the standard library's logging, so records of other libraries look the same. Verbosity
is klog's: 0 is what an operator acts on, 2 what happened to each claim, 4 why, 6 for us. It is
the level `INFO - v`. Source: spec/tracing.md §6; spec/api-and-webhook.md §7.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TextIO

from nvdra_api.runtime.telemetry.active import CURRENT
from nvdra_api.types import keys
from nvdra_api.types.errors import DriverError

MAX_VERBOSITY: Final = 9
"""Higher values mean this one: level 10 is where other libraries log whole requests."""

_OWN: Final = "nvdra_"
_FACTS: Final = "nvdra_facts"
_STANDARD: Final = frozenset(
    vars(logging.makeLogRecord({})) | {"message": None, "asctime": None, "taskName": None}
)
_CLAIM_FACTS: Final = {
    keys.K8S_NAMESPACE_NAME: "namespace",
    keys.K8S_RESOURCECLAIM_NAME: "name",
    keys.K8S_RESOURCECLAIM_UID: "uid",
}
_encode: Final = json.JSONEncoder(default=str, ensure_ascii=False).encode


class Format(StrEnum):
    """Values of `--logging-format`."""

    TEXT = "text"
    JSON = "json"


class Log:
    """Sentences with facts: `LOG.v(2, "Prepared the claim", devices=names)`.

    A fact is anything JSON can say; everything else is written as its `str`. A plain
    `logging.Logger` with `extra={…}` makes the same lines.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def is_enabled(self, verbosity: int) -> bool:
        """Whether records of this verbosity are written: ask before gathering costly facts."""
        return self._logger.isEnabledFor(logging.INFO - verbosity)

    def v(self, verbosity: int, sentence: str, /, **facts: object) -> None:
        """What happened, for those who asked for this verbosity."""
        self.write(logging.INFO - verbosity, sentence, facts)

    def info(self, sentence: str, /, **facts: object) -> None:
        """What an operator should see in any case."""
        self.write(logging.INFO, sentence, facts)

    def warning(self, sentence: str, /, **facts: object) -> None:
        """Something is not as it should be, and we go on."""
        self.write(logging.WARNING, sentence, facts)

    def error(self, sentence: str, /, **facts: object) -> None:
        """Something failed."""
        self.write(logging.ERROR, sentence, facts)

    def failure(self, sentence: str, error: BaseException, /, **facts: object) -> None:
        """Something failed by an exception: its reason when known, otherwise its stack."""
        self.write(logging.ERROR, sentence, facts, error)

    def write(
        self,
        level: int,
        sentence: str,
        facts: Mapping[str, object],
        error: BaseException | None = None,
        *,
        caller: int = 3,
    ) -> None:
        """Write one record at a level of the standard library.

        Args:
            level: `logging.INFO - v` for a verbosity.
            sentence: What happened.
            facts: By name.
            error: A known failure adds its reason and message, any other its stack.
            caller: How many frames up the place lies that the record names.
        """
        if not self._logger.isEnabledFor(level):
            return
        if isinstance(error, DriverError):
            facts = {**facts, "reason": error.reason.value, "error": error.message}
            error = None
        extra = {_FACTS: facts}
        self._logger.log(level, sentence, exc_info=error, extra=extra, stacklevel=caller)


def logger(name: str) -> Log:
    """The log of one module: `LOG = logs.logger(__name__)`."""
    return Log(name)


class Logging:
    """What `configure` set up; its verbosity can change while the process runs."""

    def __init__(self, handler: logging.Handler, verbosity: int) -> None:
        self._handler = handler
        self._verbosity = 0
        self.set_verbosity(verbosity)

    @property
    def verbosity(self) -> int:
        """As in `-v`."""
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
        """Stop writing; for whoever configured, in reverse."""
        logging.getLogger().removeHandler(self._handler)


def configure(
    format_: Format, verbosity: int, component: str, stream: TextIO | None = None
) -> Logging:
    """Let every logger of the process write to `stream` (standard error when there is none).

    Other libraries are heard from WARNING on: their lower levels are not made for operators.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(component) if format_ is Format.JSON else TextLines())
    handler.addFilter(_is_wanted)
    logging.getLogger().addHandler(handler)
    return Logging(handler, verbosity)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record, without its end."""
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
            fixed["stack"] = self.formatException(record.exc_info)
        # Twice: first for the order in the line, then so that no fact can take its place.
        return _encode({**fixed, **_context(), **_facts(record), **fixed})


class TextLines(logging.Formatter):
    """klog's header, the sentence, and the facts as `key="value"`; what is no text, as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record, without its end; a stack follows on lines of its own."""
        time = _time(record).strftime("%m%d %H:%M:%S.%f")
        head = f"{_level(record)[0]}{time} {record.filename}:{record.lineno}] {record.getMessage()}"
        facts = {**_facts(record), **_context()}
        line = " ".join([head, *(f"{key}={_encode(value)}" for key, value in facts.items())])
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.startswith(_OWN)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _level(record: logging.LogRecord) -> str:
    return record.levelname if record.levelno >= logging.INFO else "INFO"


def _facts(record: logging.LogRecord) -> Mapping[str, object]:
    """The facts of a record, ours or those of a plain `extra`."""
    facts: Mapping[str, object] | None = getattr(record, _FACTS, None)
    if facts is not None:
        return facts
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _context() -> dict[str, object]:
    """The trace, the span and the object of the step that writes."""
    span = CURRENT.get()
    if span is None or span.trace is None:
        return {}
    context: dict[str, object] = {"trace_id": span.trace, "span_id": span.id}
    if keys.K8S_RESOURCECLAIM_UID in span.subject:
        context["kind"] = "ResourceClaim"
        for key, fact in _CLAIM_FACTS.items():
            if key in span.subject:
                context[fact] = span.subject[key]
    return context


def attribute_facts(attributes: Mapping[str, object]) -> dict[str, object]:
    """Attributes of a span as facts of its record, without what the record says anyway."""
    return {
        key.removeprefix("nvdra."): value
        for key, value in attributes.items()
        if key not in _CLAIM_FACTS
    }
