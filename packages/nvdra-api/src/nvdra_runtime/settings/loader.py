# SPDX-License-Identifier: Apache-2.0
"""Loads a settings model from flags and environment variables.

No other module of ours reads the environment; the OpenTelemetry SDK reads its `OTEL_*` variables.
Source: docs/reference/gpu-devices.md, "Command line"; docs/reference/api-types.md, "Parsing",
"Common flags and environment".
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nvdra_api.gates import FeatureGateError, FeatureGates
from pydantic import BaseModel, ValidationError

from nvdra_runtime.process import output
from nvdra_runtime.settings import flags, help_page
from nvdra_runtime.settings.flags import Flag, FlagEntry, ParsedCommandLine

__all__ = ["Flag", "SettingsError", "as_flags", "environment_variables", "load", "load_or_raise"]

M = TypeVar("M", bound=BaseModel)


class SettingsError(Exception):
    """All problems of the settings.

    Attributes:
        problems: One sentence each, with the flag, the variable, the value, and what is valid.
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
    """Load the settings of this process. A flag overrides a variable, a variable the default.

    `--help` and `--version` print and exit with 0. Invalid settings are all printed to stderr, and
    the process exits with 1.

    Args:
        model: Frozen pydantic model. Its fields are the flags, its docstring starts `--help`.
        program: Name of the command.
        version: Release, for `--version`.
        argv: Arguments without the command; the default is those of the process.
        environ: Environment; the default is that of the process.
        epilogue: End of `--help`, such as examples and other commands.
    """
    entries = flags.flag_table(model)
    line = flags.parse(
        entries, sys.argv[1:] if argv is None else argv, flags.unsupported_flags(model)
    )
    if line.wants_help:
        output.print_or_exit(help_page.render(program, model.__doc__ or "", entries, epilogue))
        raise SystemExit(0)
    if line.wants_version:
        output.print_or_exit(f"{program} {version}\n")
        raise SystemExit(0)
    try:
        return _build_settings(
            model, entries, line, _process_environ() if environ is None else environ
        )
    except SettingsError as error:
        for problem in error.problems:
            output.print_error(f"Error: {problem}")
        output.print_error(f"{program} --help describes every flag.")
        raise SystemExit(1) from error


def load_or_raise(model: type[M], argv: Sequence[str], environ: Mapping[str, str]) -> M:
    """Load the settings without printing or exiting.

    Raises:
        SettingsError: The settings are not valid.
    """
    entries = flags.flag_table(model)
    line = flags.parse(entries, argv, flags.unsupported_flags(model))
    return _build_settings(model, entries, line, environ)


def environment_variables(prefix: str) -> Mapping[str, str]:
    """The variables with a prefix, such as `OTEL_`, that other software defines."""
    return {name: text for name, text in _process_environ().items() if name.startswith(prefix)}


def as_flags(settings: BaseModel) -> Mapping[str, Any]:
    """The effective settings by flag name, as JSON values, for the log line at the start."""
    values = settings.model_dump(mode="json", exclude={"feature_gates"})
    return {
        entry.name: getattr(settings, entry.field).as_map()
        if entry.is_gates
        else values[entry.field]
        for entry in flags.flag_table(type(settings))
    }


def _process_environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251 - the only place that reads it


def _build_settings(
    model: type[M],
    entries: Sequence[FlagEntry],
    line: ParsedCommandLine,
    environ: Mapping[str, str],
) -> M:
    problems = [*line.problems, *_unsupported_variables(model, environ)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for entry in entries:
        given = line.values.get(entry.field, [])
        inherited = flags.find_variable(entry, environ)
        if entry.is_gates:
            problems += _merge_gates(entry, inherited, given, values)
        elif given:
            values[entry.field], sources[entry.field] = given[-1], "flag"
        elif inherited:
            sources[entry.field], values[entry.field] = inherited
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        problems += _explain(error, entries, values, sources)
        raise SettingsError(problems) from error
    if problems:
        raise SettingsError(problems)
    return settings


def _unsupported_variables(model: type[M], environ: Mapping[str, str]) -> Iterator[str]:
    for name, instead in flags.unsupported_flags(model).items():
        if environ.get(name):
            yield f"variable {name}: not supported: {instead}"


def _merge_gates(
    entry: FlagEntry,
    inherited: tuple[str, str] | None,
    given: Sequence[str],
    values: dict[str, Any],
) -> Iterator[str]:
    """Apply the variable first, then every occurrence of the flag, gate by gate."""
    gates: FeatureGates = entry.default
    if inherited:
        name, text = inherited
        try:
            gates = gates.merged(text)
        except FeatureGateError as error:
            yield (
                f'could not parse "{text}" from environment variable "{name}" as value for flag '
                f"{entry.name}: {error}"
            )
    for text in given:
        try:
            gates = gates.merged(text)
        except FeatureGateError as error:
            yield f'invalid value "{text}" for flag {entry.flag}: {error}'
    yield from (f"feature gate validation failed: {text}" for text in gates.problems())
    values[entry.field] = gates


def _explain(
    error: ValidationError,
    entries: Sequence[FlagEntry],
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
            yield f"{_flag_and_variable(entry)} is required: {entry.help}"
        else:
            source = sources[entry.field]
            where = entry.flag if source == "flag" else f"variable {source} (flag {entry.flag})"
            yield f'{where}: "{values[entry.field]}" is not valid: {text[:1].lower()}{text[1:]}'


def _flag_and_variable(entry: FlagEntry) -> str:
    return f"{entry.flag} (variable {entry.env[0]})" if entry.env else entry.flag
