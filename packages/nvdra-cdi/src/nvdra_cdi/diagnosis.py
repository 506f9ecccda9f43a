"""What is wrong with the bytes of a document, each problem with its line.

For people and for the errors about files. Loading a good document does none of this work.
"""

from dataclasses import replace

from nvdra_cdi import codec, composing, validate
from nvdra_cdi.errors import CodecError, Problem


def problems(data: bytes) -> tuple[Problem, ...]:
    """Everything that is wrong, our extra rules included.

    Rules are not looked at in a document that has not the shape of one. The last problem, an extra
    one, is a second document in the same file: nobody reads it.
    """
    try:
        spec = codec.loads(data)
    except CodecError as error:
        return placed(error.problems, data)
    found = placed(validate.problems(spec), data)
    line = composing.second_document(data)
    if line is None:
        return found
    message = "a second document begins, which nobody reads"
    return (*found, Problem("", message, is_extra=True, line=line, remedy="give it its own file"))


def placed(found: tuple[Problem, ...], data: bytes) -> tuple[Problem, ...]:
    """The problems with their lines, those of the nearest thing around where a field is missing."""
    if all(problem.line or not problem.path for problem in found):
        return found
    lines = composing.lines(data)
    return tuple(
        problem if problem.line else replace(problem, line=_nearest(problem.path, lines))
        for problem in found
    )


def _nearest(path: str, lines: dict[str, int]) -> int:
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 0)
