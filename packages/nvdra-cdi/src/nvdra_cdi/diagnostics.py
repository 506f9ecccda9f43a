# SPDX-License-Identifier: Apache-2.0
"""Find all problems in the bytes of a document, with line numbers.

The command and the errors about files use this. Loading a valid document does not.
"""

from dataclasses import replace

from nvdra_cdi import codec, validation
from nvdra_cdi.encoding import yaml_nodes
from nvdra_cdi.errors import CodecError, Problem


def problems(data: bytes) -> tuple[Problem, ...]:
    """All problems, including warnings.

    If the document cannot be decoded, its rules are not checked. A second document in the file is
    a warning, and the last problem.
    """
    try:
        spec = codec.loads(data)
    except CodecError as error:
        return with_lines(error.problems, data)
    found = with_lines(validation.problems(spec), data)
    line = yaml_nodes.second_document_line(data)
    if line is None:
        return found
    message = "a second document begins here, and no runtime reads it"
    return (
        *found,
        Problem("", message, is_warning=True, line=line, remedy="move it to its own file"),
    )


def with_lines(found: tuple[Problem, ...], data: bytes) -> tuple[Problem, ...]:
    """The problems with line numbers. A missing field gets the line of its nearest parent."""
    if all(problem.line or not problem.path for problem in found):
        return found
    lines = yaml_nodes.line_numbers(data)
    return tuple(
        problem if problem.line else replace(problem, line=_nearest_line(problem.path, lines))
        for problem in found
    )


def _nearest_line(path: str, lines: dict[str, int]) -> int:
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 0)
