"""`nvdra-cdi inject`: a container's OCI configuration with devices in it, as a runtime would."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from nvdra_cdi import files, oci
from nvdra_cdi.cache import Cache
from nvdra_cdi.cli import resolving
from nvdra_cdi.cli.answers import FAILED, Answer, UsageError, complaints
from nvdra_cdi.errors import FileError, InjectionError, UnresolvedDevicesError

_STANDARD_INPUT = "-"
_TOO_DEEP = "the configuration nests too deeply for one of a container"


def run(arguments: argparse.Namespace) -> Answer:
    """Read the configuration, apply the devices' edits, print it or put it back."""
    source = arguments.config
    if arguments.in_place and source == _STANDARD_INPUT:
        raise UsageError("--in-place needs --config FILE: standard input has no place")
    cache = Cache(arguments.spec_dir, auto_refresh=False)
    where = "standard input" if source == _STANDARD_INPUT else source
    try:
        text = _json(oci.inject(_configuration(source), cache, arguments.names))
    except InjectionError as error:
        raise InjectionError(f"cannot inject into {where}: {error}") from error
    except UnresolvedDevicesError as error:
        why = (f"error: {line}" for line in resolving.reasons(cache, error.names))
        return Answer("", (*complaints(cache.get_errors()), *why), FAILED)
    if not arguments.in_place:
        return Answer(text)
    files.rewrite(source, f"{text}\n".encode())
    return Answer(remarks=(f"{source}: {', '.join(arguments.names)} injected",))


def _configuration(source: str) -> dict[str, Any]:
    try:
        document = json.loads(_bytes(source), parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise FileError(f"cannot read {source}: {error.strerror}") from error
    except ValueError as error:
        raise InjectionError(f"no JSON: {error}") from error
    except RecursionError as error:
        raise InjectionError(_TOO_DEEP) from error
    if not isinstance(document, dict):
        raise InjectionError("no OCI runtime specification: it is no object")
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
        raise ValueError(f"{text} is no number of JSON")
    return number
