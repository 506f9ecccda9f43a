"""Flags and environment → one frozen model. Nothing else reads the environment.

Source: style.md §14; spec/gpu-devices.md §2.1; spec/api-and-webhook.md §§6.2, 7.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nvdra_api.runtime.process import flags, output, usage
from nvdra_api.runtime.process.flags import CommandLine, Entry, Flag
from nvdra_api.types.gates import GateError, Gates

__all__ = ["Flag", "SettingsError", "as_flags", "load", "read", "variables"]

M = TypeVar("M", bound=BaseModel)


class SettingsError(Exception):
    """Everything that is wrong with the settings, at once.

    Attributes:
        problems: One sentence each: flag, variable, value, what would be right.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def load(
    model: type[M],
    *,
    program: str,
    version: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    epilogue: str = "",
) -> M:
    """The settings of this process: flag over variable over default.

    `--help` and `--version` print and exit 0; wrong settings are all printed to stderr, exit 1.

    Args:
        model: Frozen pydantic model; its fields are the flags, its docstring opens `--help`.
        program: Name of the command.
        version: Its release, for `--version`.
        argv: Without the command; by default the process's own.
        environ: By default the process's own.
        epilogue: Ends `--help`: examples, other commands.
    """
    entries = flags.table(model)
    line = flags.parse(entries, sys.argv[1:] if argv is None else argv, flags.left_out(model))
    if line.wants_help:
        output.say(usage.page(program, model.__doc__ or "", entries, epilogue))
        raise SystemExit(0)
    if line.wants_version:
        output.say(f"{program} {version}\n")
        raise SystemExit(0)
    try:
        return _filled(model, entries, line, _process_environ() if environ is None else environ)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"Error: {problem}\n")
        sys.stderr.write(f"{program} --help explains every flag.\n")
        raise SystemExit(1) from error


def read(model: type[M], argv: Sequence[str], environ: Mapping[str, str]) -> M:
    """As `load`, without printing or leaving.

    Raises:
        SettingsError: Something is wrong; it names everything that is.
    """
    entries = flags.table(model)
    line = flags.parse(entries, argv, flags.left_out(model))
    return _filled(model, entries, line, environ)


def variables(prefix: str) -> Mapping[str, str]:
    """Variables that other software defines and we hand on to it, such as `OTEL_`."""
    return {name: text for name, text in _process_environ().items() if name.startswith(prefix)}


def as_flags(settings: BaseModel) -> Mapping[str, Any]:
    """The effective settings by flag name, as JSON values, for the log line at start."""
    values = settings.model_dump(mode="json", exclude={"feature_gates"})
    return {
        entry.name: getattr(settings, entry.field).as_map()
        if entry.is_gates
        else values[entry.field]
        for entry in flags.table(type(settings))
    }


def _process_environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251 - this is the one reader of the environment


def _filled(
    model: type[M], entries: Sequence[Entry], line: CommandLine, environ: Mapping[str, str]
) -> M:
    problems = [*line.problems, *_gone(model, environ)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for entry in entries:
        given = line.values.get(entry.field, [])
        inherited = flags.variable(entry, environ)
        if entry.is_gates:
            problems += _merge_gates(entry, inherited, given, values)
        elif given:
            values[entry.field], sources[entry.field] = given[-1], "flag"
        elif inherited:
            sources[entry.field], values[entry.field] = inherited
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        problems += _explained(error, entries, values, sources)
        raise SettingsError(problems) from error
    if problems:
        raise SettingsError(problems)
    return settings


def _gone(model: type[M], environ: Mapping[str, str]) -> Iterator[str]:
    for name, instead in flags.left_out(model).items():
        if environ.get(name):
            yield f"variable {name}: left out: {instead}"


def _merge_gates(
    entry: Entry,
    inherited: tuple[str, str] | None,
    given: Sequence[str],
    values: dict[str, Any],
) -> Iterator[str]:
    """The variable first, then every occurrence of the flag, gate by gate."""
    gates: Gates = entry.default
    if inherited:
        name, text = inherited
        try:
            gates = gates.merged(text)
        except GateError as error:
            yield (
                f'could not parse "{text}" from environment variable "{name}" as value for flag '
                f"{entry.name}: {error}"
            )
    for text in given:
        try:
            gates = gates.merged(text)
        except GateError as error:
            yield f'invalid value "{text}" for flag {entry.flag}: {error}'
    yield from (f"feature gate validation failed: {text}" for text in gates.problems())
    values[entry.field] = gates


def _explained(
    error: ValidationError,
    entries: Sequence[Entry],
    values: Mapping[str, Any],
    sources: Mapping[str, str],
) -> Iterator[str]:
    by_field = {entry.field: entry for entry in entries}
    for detail in error.errors(include_url=False, include_context=False):
        entry = by_field.get(str(detail["loc"][0])) if detail["loc"] else None
        text = detail["msg"].removeprefix("Value error, ")
        if entry is None:
            yield text
        elif entry.field not in values:
            yield f"{_called(entry)} is required: {entry.help}"
        else:
            source = sources[entry.field]
            where = entry.flag if source == "flag" else f"variable {source} (flag {entry.flag})"
            yield f'{where}: "{values[entry.field]}" is not valid: {text[:1].lower()}{text[1:]}'


def _called(entry: Entry) -> str:
    return f"{entry.flag} (variable {entry.env[0]})" if entry.env else entry.flag
