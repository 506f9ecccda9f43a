# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi validate`: report the problems of spec files with lines and remedies."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nvdra_cdi import cache, codec, diagnostics, files, version
from nvdra_cdi.cli.output import EXIT_FAILURE, EXIT_SUCCESS, CommandOutput, serialize
from nvdra_cdi.encoding.yaml_nodes import MAX_BYTES
from nvdra_cdi.encoding.yaml_writer import PlainData
from nvdra_cdi.errors import CDIError, CodecError, ConflictError, FileError, Problem, one_line

_STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """The problems of a file, and the version it has and needs, if it could be decoded."""

    path: str
    problems: tuple[Problem, ...]
    versions: tuple[str, str] | None = None

    def is_valid(self, strict: bool) -> bool:
        return not any(strict or not problem.is_warning for problem in self.problems)


def run(arguments: argparse.Namespace) -> CommandOutput:
    """Validate files, and the spec files in directories."""
    paths = arguments.paths or arguments.spec_dir or cache.DEFAULT_DIRECTORIES
    checked = list(_check_all(paths, is_default=not arguments.paths))
    strict = arguments.strict
    code = EXIT_SUCCESS if all(each.is_valid(strict) for each in checked) else EXIT_FAILURE
    if arguments.output in ("json", "yaml"):
        found: dict[str, PlainData] = {"files": [_as_data(each, strict) for each in checked]}
        return CommandOutput(serialize(found, arguments.output), exit_code=code)
    if not checked:
        return CommandOutput(stderr_lines=(f"no spec files in {', '.join(paths)}",))
    lines = [line for each in checked for line in _text_lines(each, strict)]
    return CommandOutput("\n".join((*lines, _summary(checked, strict))), exit_code=code)


def _check_all(paths: Iterable[str], *, is_default: bool) -> Iterator[_CheckedFile]:
    directories = [path for path in paths if path != _STANDARD_INPUT and Path(path).is_dir()]
    conflicts = _conflicts(directories)
    for path in paths:
        if path == _STANDARD_INPUT:
            yield _checked("standard input", sys.stdin.buffer.read(MAX_BYTES + 1))
        elif path not in directories:
            if not (is_default and not Path(path).exists()):  # a default directory may be missing
                yield _check(path, ())
        else:
            try:
                found = cache.spec_files(path)
            except FileError as error:
                yield _CheckedFile(path, (Problem("", str(error)),))
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


def _check(path: str, conflicts: tuple[Problem, ...]) -> _CheckedFile:
    try:
        return _checked(path, files.read_bytes(path), conflicts)
    except CDIError as error:
        remedy = "make it a readable file, or remove it"
        return _CheckedFile(path, (Problem("", str(error), remedy=remedy),))


def _checked(path: str, contents: bytes, conflicts: tuple[Problem, ...] = ()) -> _CheckedFile:
    problems = (*diagnostics.problems(contents), *conflicts)
    try:
        spec = codec.loads(contents)
    except CodecError:
        return _CheckedFile(path, problems)
    return _CheckedFile(path, problems, (spec.version, version.minimum_required(spec)))


def _text_lines(checked: _CheckedFile, strict: bool) -> Iterator[str]:
    path = one_line(checked.path)
    if checked.is_valid(strict) and checked.versions is not None:
        stated, needed = checked.versions
        lower = f", {needed} would be sufficient" if stated != needed else ""
        yield f"{path}: valid, version {stated}{lower}"
    for problem in checked.problems:
        kind = _severity(problem, strict)
        place = f"{path}:{problem.line}" if problem.line else path
        yield f"{place}: {kind}: {replace(problem, line=0)}"
        if problem.remedy:
            yield f"    {problem.remedy}"


def _severity(problem: Problem, strict: bool) -> str:
    return "warning" if problem.is_warning and not strict else "error"


def _summary(checked: list[_CheckedFile], strict: bool) -> str:
    bad = sum(not each.is_valid(strict) for each in checked)
    count = "1 file" if len(checked) == 1 else f"{len(checked)} files"
    return f"{count}, {bad or 'none'} with errors"


def _as_data(checked: _CheckedFile, strict: bool) -> PlainData:
    item: dict[str, PlainData] = {"path": checked.path, "valid": checked.is_valid(strict)}
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
