# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi inject`: inject devices into a container's OCI configuration, as a runtime does."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from nvdra_cdi import files, oci
from nvdra_cdi.cache import Cache
from nvdra_cdi.cli import name_patterns, resolve_command
from nvdra_cdi.cli.output import EXIT_FAILURE, CommandOutput, UsageError, spec_error_lines
from nvdra_cdi.errors import FileError, InjectionError, UnresolvedDevicesError

_STANDARD_INPUT = "-"
_TOO_DEEP = "the configuration has too many levels"


def run(arguments: argparse.Namespace) -> CommandOutput:
    """Read the configuration, apply the edits of the devices, and print or write the result."""
    source = arguments.config
    if arguments.in_place and source == _STANDARD_INPUT:
        raise UsageError("--in-place requires --config FILE: standard input cannot be written")
    cache = Cache(arguments.spec_dir, auto_refresh=False)
    names = name_patterns.expand(arguments.names, cache.list_devices())
    where = "standard input" if source == _STANDARD_INPUT else source
    try:
        text = _json(oci.inject(_configuration(source), cache, names))
    except InjectionError as error:
        raise InjectionError(f"cannot inject into {where}: {error}") from error
    except UnresolvedDevicesError as error:
        why = (f"error: {line}" for line in resolve_command.unresolved_reasons(cache, error.names))
        return CommandOutput("", (*spec_error_lines(cache.get_errors()), *why), EXIT_FAILURE)
    if not arguments.in_place:
        return CommandOutput(text)
    files.rewrite(source, f"{text}\n".encode())
    return CommandOutput(stderr_lines=(f"{source}: injected {', '.join(names)}",))


def _configuration(source: str) -> dict[str, Any]:
    try:
        document = json.loads(_bytes(source), parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise FileError(f"cannot read {source}: {error.strerror}") from error
    except ValueError as error:
        raise InjectionError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise InjectionError(_TOO_DEEP) from error
    if not isinstance(document, dict):
        raise InjectionError("not an OCI runtime specification: it is not an object")
    return document


def _bytes(source: str) -> bytes:
    if source == _STANDARD_INPUT:
        return sys.stdin.buffer.read()
    return Path(source).read_bytes()


def _json(document: dict[str, Any]) -> str:
    try:
        return json.dumps(document, indent=2)
    except RecursionError as error:
        raise InjectionError(_TOO_DEEP) from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number
