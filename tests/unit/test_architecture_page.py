# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md names every module of every package.

A module is named in code, in full or by the end of its path if that is unique. Otherwise, a name
that follows a full one in its line belongs to the same package.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "architecture.md"

CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
NAME = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*", re.ASCII)

UNTOLD = ("__init__", "__about__", "__main__")
"""These modules are the same in every package."""


def test_every_module_is_named() -> None:
    modules = set(_modules())
    assert len(modules) > 100
    left_out = modules - set(_named(MAP.read_text(), modules))
    assert sorted(left_out) == [], f"say in {MAP.name} what lives there"


def test_a_name_that_several_modules_end_in_counts_for_the_one_it_is_listed_with() -> None:
    modules = {"nvdra_a.files", "nvdra_b.files", "nvdra_b.cache", "nvdra_b.cli.main"}
    assert set(_named("`cache` and files", modules)) == {"nvdra_b.cache"}
    assert set(_named("`files`", modules)) == set()
    assert set(_named("| `nvdra_b.cache`, `files` |", modules)) == {
        "nvdra_b.cache",
        "nvdra_b.files",
    }
    assert set(_named("```text\ncli.main: nvdra_a.files\n```", modules)) == {
        "nvdra_a.files",
        "nvdra_b.cli.main",
    }


def _modules() -> Iterator[str]:
    for source in ROOT.glob("packages/*/src"):
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            if "_generated" not in parts and parts[-1] not in UNTOLD:
                yield ".".join(parts)


def _named(page: str, modules: Iterable[str]) -> Iterator[str]:
    known = set(modules)
    for line in _code_by_line(page):
        package = ""
        for name in NAME.findall(line):
            meant = {each for each in known if f".{each}".endswith(f".{name}")}
            if len(meant) > 1:
                meant &= {name, f"{package}.{name}"}
            yield from meant
            if name.startswith("nvdra_"):
                package = name.rpartition(".")[0] or name


def _code_by_line(page: str) -> Iterator[str]:
    """The code on the page, line by line."""
    masked = list("".join(char if char == "\n" else " " for char in page))
    for code in CODE.finditer(page):
        masked[code.start() : code.end()] = code[0]
    return iter("".join(masked).splitlines())
