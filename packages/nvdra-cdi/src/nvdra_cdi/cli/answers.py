"""What a subcommand answers: tables for people, JSON and YAML for programs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvdra_cdi import yamltext
from nvdra_cdi.errors import CDIError, DocumentError, one_line
from nvdra_cdi.yamltext import Plain

DONE, FAILED, MISUSED = 0, 1, 2
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Answer:
    """What one run of the command says.

    Attributes:
        text: For standard output; a line break is added unless it ends in one.
        remarks: For standard error, a line each.
        code: The exit status.
    """

    text: str = ""
    remarks: tuple[str, ...] = ()
    code: int = DONE


class UsageError(CDIError):
    """Arguments that contradict each other."""


def data(value: dict[str, Plain], form: str) -> str:
    """Plain data as `json` or `yaml`."""
    if form == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    return yamltext.document(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their headings; no value breaks out of its line."""
    cells = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        _GAP.join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in cells
    )


def complaints(errors: Mapping[str, Sequence[CDIError]]) -> tuple[str, ...]:
    """One remark for each thing that is wrong with spec files and directories."""
    return tuple(f"warning: {one_line(text)}" for _, _, text in _each(errors))


def complaints_data(errors: Mapping[str, Sequence[CDIError]]) -> list[Plain]:
    """The same for programs; line 0 where it is no line's fault."""
    return [
        {"path": path, "line": line, "message": text.removeprefix(f"{path}: ")}
        for path, line, text in _each(errors)
    ]


def _each(errors: Mapping[str, Sequence[CDIError]]) -> Iterator[tuple[str, int, str]]:
    """Path, line and text of each thing."""
    for path, found in errors.items():
        for error in found:
            if not isinstance(error, DocumentError):
                yield path, 0, str(error)
                continue
            for problem in error.problems:
                yield path, problem.line, f"{path}: {problem}"
