"""`nvdra-cdi validate`: what is wrong with spec files, where, and what to do about it."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nvdra_cdi import cache, codec, diagnosis, files, version
from nvdra_cdi.cli.answers import DONE, FAILED, Answer, data
from nvdra_cdi.composing import MAX_BYTES
from nvdra_cdi.errors import CDIError, CodecError, ConflictError, FileError, Problem, one_line
from nvdra_cdi.yamltext import Plain

_STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class _Checked:
    """One file: its problems, and the versions it states and needs where it can be read."""

    path: str
    problems: tuple[Problem, ...]
    versions: tuple[str, str] | None = None

    def is_valid(self, strict: bool) -> bool:
        return not any(strict or not problem.is_extra for problem in self.problems)


def run(arguments: argparse.Namespace) -> Answer:
    """Check files and the spec files of directories."""
    paths = arguments.paths or arguments.spec_dir or cache.DEFAULT_DIRECTORIES
    checked = list(_check_all(paths, is_default=not arguments.paths))
    strict = arguments.strict
    code = DONE if all(each.is_valid(strict) for each in checked) else FAILED
    if arguments.output in ("json", "yaml"):
        found: dict[str, Plain] = {"files": [_as_data(each, strict) for each in checked]}
        return Answer(data(found, arguments.output), code=code)
    if not checked:
        return Answer(remarks=(f"no spec files in {', '.join(paths)}",))
    lines = [line for each in checked for line in _told(each, strict)]
    return Answer("\n".join((*lines, _summary(checked, strict))), code=code)


def _check_all(paths: Iterable[str], *, is_default: bool) -> Iterator[_Checked]:
    directories = [path for path in paths if path != _STANDARD_INPUT and Path(path).is_dir()]
    conflicts = _conflicts(directories)
    for path in paths:
        if path == _STANDARD_INPUT:
            yield _checked("standard input", sys.stdin.buffer.read(MAX_BYTES + 1))
        elif path not in directories:
            if not (is_default and not Path(path).exists()):  # nobody asked for it by name
                yield _check(path, ())
        else:
            try:
                found = cache.spec_files(path)
            except FileError as error:
                yield _Checked(path, (Problem("", str(error)),))
            else:
                for file in found:
                    yield _check(file, conflicts.get(file, ()))


def _conflicts(directories: list[str]) -> dict[str, tuple[Problem, ...]]:
    if not directories:
        return {}
    errors = cache.Cache(directories, auto_refresh=False).get_errors()
    return {
        path: tuple(Problem("", str(error)) for error in found if isinstance(error, ConflictError))
        for path, found in errors.items()
    }


def _check(path: str, conflicts: tuple[Problem, ...]) -> _Checked:
    try:
        return _checked(path, files.contents(path), conflicts)
    except CDIError as error:
        remedy = "make it a readable file, or remove it"
        return _Checked(path, (Problem("", str(error), remedy=remedy),))


def _checked(path: str, contents: bytes, conflicts: tuple[Problem, ...] = ()) -> _Checked:
    problems = (*diagnosis.problems(contents), *conflicts)
    try:
        spec = codec.loads(contents)
    except CodecError:
        return _Checked(path, problems)
    return _Checked(path, problems, (spec.version, version.minimum_required(spec)))


def _told(checked: _Checked, strict: bool) -> Iterator[str]:
    path = one_line(checked.path)
    if checked.is_valid(strict) and checked.versions is not None:
        stated, needed = checked.versions
        yield f"{path}: good, version {stated}" + (f", {needed} would do" * (stated != needed))
    for problem in checked.problems:
        kind = _severity(problem, strict)
        place = f"{path}:{problem.line}" if problem.line else path
        yield f"{place}: {kind}: {replace(problem, line=0)}"
        if problem.remedy:
            yield f"    {problem.remedy}"


def _severity(problem: Problem, strict: bool) -> str:
    return "warning" if problem.is_extra and not strict else "error"


def _summary(checked: list[_Checked], strict: bool) -> str:
    bad = sum(not each.is_valid(strict) for each in checked)
    count = "1 file" if len(checked) == 1 else f"{len(checked)} files"
    return f"{count}, {bad or 'none'} with errors"


def _as_data(checked: _Checked, strict: bool) -> Plain:
    item: dict[str, Plain] = {"path": checked.path, "valid": checked.is_valid(strict)}
    if checked.versions is not None:
        item["version"], item["minimumVersion"] = checked.versions
    item["problems"] = [
        {
            "path": problem.path,
            "line": problem.line,
            "device": problem.device,
            "message": problem.message,
            "remedy": problem.remedy,
            "severity": _severity(problem, strict),
        }
        for problem in checked.problems
    ]
    return item
