# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi dirs`: list the spec directories, their priorities and what is wrong with them."""

import argparse
import posixpath
from itertools import chain

from nvdra_cdi.cache import Cache
from nvdra_cdi.cli.output import CommandOutput, serialize, spec_error_data, table
from nvdra_cdi.encoding.yaml_writer import PlainData
from nvdra_cdi.errors import CDIError


def run(arguments: argparse.Namespace) -> CommandOutput:
    """List the directories, those of the lowest priority first."""
    cache = Cache(arguments.spec_dir)
    form = arguments.output
    if form in ("json", "yaml"):
        items: list[PlainData] = [
            {
                "path": path,
                "priority": priority,
                "exists": cache.has_spec_dir(path),
                "specs": _number_of_specs(cache, priority),
                "errors": spec_error_data(_errors(cache, path)),
            }
            for priority, path in enumerate(cache.get_spec_dirs())
        ]
        return CommandOutput(serialize({"directories": items}, form))
    if form == "name":
        return CommandOutput("".join(f"{path}\n" for path in cache.get_spec_dirs()))
    rows = [
        (path, str(priority), str(_number_of_specs(cache, priority)), _state(cache, path))
        for priority, path in enumerate(cache.get_spec_dirs())
    ]
    return CommandOutput(table(("DIRECTORY", "PRIORITY", "SPECS", "STATE"), rows))


def _number_of_specs(cache: Cache, priority: int) -> int:
    specs = chain.from_iterable(map(cache.get_vendor_specs, cache.list_vendors()))
    return sum(spec.priority == priority for spec in specs)


def _errors(cache: Cache, directory: str) -> dict[str, tuple[CDIError, ...]]:
    """The errors of the directory, except that it does not exist, and of the files in it."""
    return {
        path: found
        for path, found in cache.get_errors().items()
        if posixpath.dirname(path) == directory
        or (path == directory and cache.has_spec_dir(directory))
    }


def _state(cache: Cache, directory: str) -> str:
    if not cache.has_spec_dir(directory):
        return "does not exist"
    errors = _errors(cache, directory)
    if directory in errors:
        return str(errors[directory][0]).removeprefix(f"{directory}: ")
    files = "1 file" if len(errors) == 1 else f"{len(errors)} files"
    return f"{files} with errors" if errors else "ok"
