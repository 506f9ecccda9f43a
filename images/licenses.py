# SPDX-License-Identifier: Apache-2.0
"""The licences of what is in an image: where their texts are, and what they are called.

Distributions of Python bring their texts in dist-info, Debian packages in /usr/share/doc. A program
in Go brings none: those of the modules that are linked into nvidia-cdi-hook are in hook_licenses,
by module, where `python -m scripts.collect_hook_licenses` has put them.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

HOOK_TEXTS = Path(__file__).with_name("hook_licenses")
DOC = Path("usr/share/doc")
UNKNOWN = "NOASSERTION"
"""What SPDX calls a licence of which nothing is said."""
GO = "stdlib"
"""What bills of materials call the library of Go itself, which is in each program."""
TEXT = re.compile(r"(licen[cs]e|copying|notice|patents)", re.IGNORECASE)
"""Names of files with such texts."""
NOTICES = re.compile(r"notice|patents", re.IGNORECASE)
"""Those that speak of what others have added, or of patents."""
HEADERS = {"nvidia-ml-py": "pynvml.py"}
"""Distributions that have no such file, and the module whose first comment is the text."""
WORDS = {
    "Apache-2.0": r"Apache License,?\s+Version 2\.0",
    "MPL-2.0": r"Mozilla Public License,?\s+[Vv]ersion 2\.0",
    "MIT": r"Permission is hereby granted, free of charge",
    "ISC": r"Permission to use, copy, modify, and(/or)? distribute this software for any purpose",
    "PSF-2.0": r"PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2",
    "BSD": r"Redistribution and use in source and binary forms",
}
"""Licence → words that its text has, and others have not."""
ENDORSEMENT = re.compile(r"endorse\s+or\s+promote")
MODULE = re.compile(
    rb"\n(?:mod|dep)\t([^\t\n]+)\t([^\t\n]+)[^\n]*(?:\n=>\t([^\t\n]+)\t([^\t\n]+))?"
)
GO_VERSION = re.compile(rb"\xff Go buildinf:.{18}.go(\d[\w.]*)", re.DOTALL)


def go_modules(program: Path) -> dict[str, str]:
    """Module → version of what is linked into a program in Go, its library included.

    Raises:
        SystemExit: It does not say.
    """
    contents = program.read_bytes()
    found = {
        (other or path).decode(): (other_version or version).decode()
        for path, version, other, other_version in MODULE.findall(contents)
    }
    said = GO_VERSION.search(contents)
    if not found or said is None:
        raise SystemExit(f"error: {program} does not say of which modules of Go it is made")
    return {**found, GO: said[1].decode()}


def texts_of(module: str) -> list[Path]:
    """The licence texts of a module that is linked into the hook; none if it is unknown."""
    folder = HOOK_TEXTS / module
    return sorted(path for path in folder.glob("*") if path.is_file())


def copy_hook_texts(hook: Path, tree: Path) -> None:
    """Copy the licence texts of each module in the hook into an image.

    Raises:
        SystemExit: A module has none.
    """
    for module in go_modules(hook):
        texts = texts_of(module)
        if not texts:
            raise SystemExit(
                f"error: there is no licence text of {module}, which is a part of {hook}: run "
                "python -m scripts.collect_hook_licenses"
            )
        target = tree / DOC / hook.name / module
        target.mkdir(parents=True)
        for text in texts:
            shutil.copyfile(text, target / text.name)


def of_module(module: str) -> str:
    """The licence of a module that is linked into the hook."""
    return of_texts(text.read_text() for text in texts_of(module) if not NOTICES.search(text.name))


def texts_in(distribution: metadata.Distribution) -> list[Path]:
    """The licence texts that a distribution of Python brings."""
    return [
        Path(str(distribution.locate_file(path)))
        for path in distribution.files or ()
        if ".dist-info" in path.parts[0] and TEXT.search("/".join(path.parts[1:]))
    ]


def copy_headers(site: Path, tree: Path) -> None:
    """Write the text of each distribution that has it as a comment only into an image.

    Raises:
        SystemExit: A distribution has no text at all.
    """
    for distribution in metadata.distributions(path=[str(site)]):
        name = normal(distribution.metadata["Name"])
        if texts_in(distribution):
            continue
        if name not in HEADERS:
            raise SystemExit(
                f"error: {name} brings no licence text: name the module whose first comment it is "
                f"in HEADERS of {__file__}"
            )
        target = tree / DOC / name / "copyright"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(first_comment((site / HEADERS[name]).read_text()))


def first_comment(source: str) -> str:
    """The comment at the start of a module, without its signs."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.strip("#").removeprefix(" "))
    return "\n".join(lines).strip("\n") + "\n"


def normal(name: str) -> str:
    """The name of a distribution as an index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def of_distribution(distribution: metadata.Distribution) -> str:
    """What a distribution says of its licence: an expression, a name, or what its texts are."""
    fields = distribution.metadata
    said = fields.get("License-Expression") or fields.get("License") or ""
    # Some give the whole text instead of the name.
    if said and len(said) < 80 and "\n" not in said:
        return str(said)
    classifiers = fields.get_all("Classifier") or []
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    if named:
        return " AND ".join(named)
    return of_texts(path.read_text() for path in texts_in(distribution))


def of_texts(texts: Iterable[str]) -> str:
    """What licences some texts are, from words in them."""
    found = sorted({name for text in texts for name in _named(text)})
    return " AND ".join(found) or UNKNOWN


def _named(text: str) -> Iterator[str]:
    for name, words in WORDS.items():
        if re.search(words, text):
            if name != "BSD":
                yield name
            else:
                yield "BSD-3-Clause" if ENDORSEMENT.search(text) else "BSD-2-Clause"


def of_debian(copyright_file: str) -> str:
    """The names in the `copyright` of a Debian package, if it is one that programs can read.

    Source: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
    """
    if not copyright_file.startswith("Format:"):
        return UNKNOWN
    paragraphs = re.split(r"\n\s*\n", copyright_file)
    said = [
        found[1].strip()
        for each in paragraphs
        if each.startswith("Files:") and (found := re.search(r"^License:(.*)$", each, re.MULTILINE))
    ]
    return " AND ".join(sorted({each for each in said if each})) or UNKNOWN
