# SPDX-License-Identifier: Apache-2.0
"""The `--help` page of a settings model: flags in groups, one paragraph each."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from nvdra_api.gates import FeatureGates

from nvdra_runtime.settings.flags import FlagEntry

WIDTH = 100
INDENT = " " * 6


def render(program: str, about: str, entries: Sequence[FlagEntry], epilogue: str = "") -> str:
    """Render the page, at most `WIDTH` columns wide. `epilogue` is not wrapped."""
    return "\n".join(_lines(program, about, entries)) + "\n" + epilogue


def _lines(program: str, about: str, entries: Sequence[FlagEntry]) -> Iterator[str]:
    yield f"Usage: {program} [flags]"
    if about:
        yield ""
        yield from textwrap.wrap(textwrap.dedent(about.partition("\n\n")[0]), WIDTH)
    yield ""
    yield "A flag overrides its variable, which overrides the default. Feature gates are merged."
    for group, members in groupby(entries, key=lambda entry: entry.group):
        yield ""
        yield f"{group or 'Flags'}:"
        for entry in members:
            yield from _flag(entry)
    yield ""
    yield "Other:"
    yield "  -h, --help"
    yield "  --version"


def _flag(entry: FlagEntry) -> Iterator[str]:
    metavar = f"[={entry.metavar}]" if entry.is_switch else f" {entry.metavar}"
    yield f"  {entry.flag}{metavar}"
    for text in (entry.help, "; ".join(_facts(entry))):
        yield from textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    if entry.is_gates:
        yield from (f"{INDENT}  {line}" for line in entry.default.help_lines())


def _facts(entry: FlagEntry) -> Iterator[str]:
    yield "required" if entry.is_required else f"default {_shown(entry.default)}"
    if entry.env:
        yield f"variable {' or '.join(entry.env)}"
    if entry.aliases:
        yield f"also {', '.join(f'--{alias}' for alias in entry.aliases)}"


def _shown(default: Any) -> str:
    if isinstance(default, FeatureGates):
        return default.explicit_text() or "none set"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default not in (None, "") else "empty"
