# SPDX-License-Identifier: Apache-2.0
"""Every citation of the documentation resolves to a page, a heading or a numbered section.

A citation is the name of a page followed by quoted headings, `docs/design.md, "Settled"`, or, for
pages whose sections are numbered, by section numbers, `docs/reference/cdi.md §13.6`. Citations
occur in code, comments, configuration and documentation, and may continue on the next line.
"""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAVIGATION = ROOT / "mkdocs.yml"
"""Names pages relative to docs/."""

TEXT = frozenset({".py", ".md", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".c", ".h", ".go", ".sh"})
TEXT_NAMES = frozenset({"Makefile", "Dockerfile"})

# A heading's parts in a citation: `"A"`, `"A" to "B"`, `"A" (KW-1), "B"`.
QUOTED = r'"[^"]+"(?: \([^()"]*\))?'
BY_HEADING = re.compile(
    rf"(?P<page>[\w./-]*\.md)\)?, (?P<parts>{QUOTED}(?:(?:,| to| and) {QUOTED})*)"
)
NUMBER = r"\d+(?:\.\d+)*"
BY_NUMBER = re.compile(
    rf"(?P<page>[\w./-]*\.md) (?P<numbers>§+{NUMBER}(?:(?:-|, §?|, | and §?){NUMBER})*)"
)
LINK = re.compile(r"\]\((?P<target>[^()#:\s]+\.md)(?:#[\w-]+)?\)")

# Documents that were never part of the repository.
OUTSIDE = re.compile(r"(?<![\w/-])spec/[a-z-]+\.md|(?<![\w/-])style\.md|(?<![\w/-])design\.md")


def test_every_citation_resolves() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {citation}"
        for path, text in _documents()
        for citation, page, wanted in _citations(path, text)
        if not _resolves(page, wanted)
    ]
    assert broken == []


def test_every_link_between_pages_resolves() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {link['target']}"
        for path, text in _documents()
        if path.suffix == ".md"
        for link in LINK.finditer(text)
        if not (path.parent / link["target"]).is_file()
    ]
    assert broken == []


def test_nothing_cites_a_document_outside_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, text in _documents()
        if not path.is_relative_to(DOCS) and path != NAVIGATION
        for match in OUTSIDE.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('see docs/design.md, "Settled" (ports).', [("docs/design.md", "Settled")]),
        ('x.md, "A" to "B", "C" (KW-1)', [("x.md", "A"), ("x.md", "B"), ("x.md", "C")]),
        (
            '# Source: x.md, "A long\n# heading"; y.md, "B".',
            [("x.md", "A long heading"), ("y.md", "B")],
        ),
        ("cdi.md §§13.6, 14 and 16.1", [("cdi.md", "13.6"), ("cdi.md", "14"), ("cdi.md", "16.1")]),
        ("a README.md, and more", []),
    ],
)
def test_citations_are_found_in_running_text(text: str, expected: list[tuple[str, str]]) -> None:
    found = [(page, wanted) for _, page, wanted in _parse(text)]
    assert found == expected


def _documents() -> Iterator[tuple[Path, str]]:
    """The tracked text files of the repository, without this one."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path == Path(__file__) or path.is_symlink() or not path.is_file():
            continue
        if path.suffix in TEXT or path.name in TEXT_NAMES:
            yield path, path.read_text(encoding="utf-8")


def _citations(path: Path, text: str) -> Iterator[tuple[str, Path, str]]:
    """Each heading or number that a file cites, with the page it should be on."""
    for citation, page, wanted in _parse(text):
        for place in (ROOT / page, path.parent / page, DOCS / "reference" / page):
            if place.is_file():
                yield citation, place.resolve(), wanted
                break
        else:
            if page.startswith("docs/"):
                yield citation, ROOT / page, wanted


def _parse(text: str) -> Iterator[tuple[str, str, str]]:
    """Each citation in a text, with its page and what it names there."""
    flat = re.sub(r"[ \t]*\n[ \t]*(?:#|//|\*)?[ \t]*", " ", text)
    for match in BY_HEADING.finditer(flat):
        for part in re.findall(r'"([^"]+)"', match["parts"]):
            yield match[0], match["page"], part
    for match in BY_NUMBER.finditer(flat):
        for number in re.findall(NUMBER, match["numbers"]):
            yield match[0], match["page"], number


def _resolves(page: Path, wanted: str) -> bool:
    return page.is_file() and wanted in _names(page)


@cache
def _names(page: Path) -> frozenset[str]:
    """What a page can be cited by: headings, their numbers, and numbered items of such sections."""
    names: set[str] = set()
    section = ""
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        if heading := re.match(rf"#+ (?:(?P<number>{NUMBER})\.? )?(?P<name>.+)$", line):
            section = heading["number"] or ""
            names |= {heading["name"].strip(), section}
        elif section and (item := re.match(r"(?P<number>\d+)\. ", line)):
            names.add(f"{section}.{item['number']}")
    return frozenset(names - {""})
