# SPDX-License-Identifier: Apache-2.0
"""The output of a subcommand: tables for people, JSON and YAML for programs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvdra_cdi.encoding import yaml_writer
from nvdra_cdi.encoding.yaml_writer import PlainData
from nvdra_cdi.errors import CDIError, DocumentError, one_line

EXIT_SUCCESS, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2
_GAP = "  "


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of one run of the command.

    Attributes:
        stdout: The text for standard output. A missing final newline is added.
        stderr_lines: The lines for standard error.
        exit_code: The exit status.
    """

    stdout: str = ""
    stderr_lines: tuple[str, ...] = ()
    exit_code: int = EXIT_SUCCESS


class UsageError(CDIError):
    """The arguments contradict each other."""


def serialize(value: dict[str, PlainData], format_: str) -> str:
    """Serialize a value as `json` or `yaml`."""
    if format_ == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    return yaml_writer.document(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A text table with headings. Each row is one line."""
    cells = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        _GAP.join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in cells
    )


def spec_error_lines(errors: Mapping[str, Sequence[CDIError]]) -> tuple[str, ...]:
    """One warning for each problem of spec files and directories."""
    return tuple(f"warning: {one_line(text)}" for _, _, text in _spec_errors(errors))


def spec_error_data(errors: Mapping[str, Sequence[CDIError]]) -> list[PlainData]:
    """The problems of spec files and directories, for programs. An unknown line is 0."""
    return [
        {"path": path, "line": line, "message": text.removeprefix(f"{path}: ")}
        for path, line, text in _spec_errors(errors)
    ]


def _spec_errors(errors: Mapping[str, Sequence[CDIError]]) -> Iterator[tuple[str, int, str]]:
    """The path, line and text of each problem."""
    for path, found in errors.items():
        for error in found:
            if not isinstance(error, DocumentError):
                yield path, 0, str(error)
                continue
            for problem in error.problems:
                yield path, problem.line, f"{path}: {problem}"
