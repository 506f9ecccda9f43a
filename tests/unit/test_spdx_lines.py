# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence, in a line that tools read."""

from pathlib import Path

import pytest

from scripts import spdx_lines

ROOT = Path(__file__).parents[2]
LINE = spdx_lines.WORDS


def test_every_source_file_names_its_licence() -> None:
    lacking = [str(path.relative_to(ROOT)) for path, _ in spdx_lines.lacking(ROOT)]
    assert lacking == [], "python -m scripts.spdx_lines --write"


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("scripts/release.py", f"# {LINE}"),
        ("Makefile", f"# {LINE}"),
        ("packages/nvdra-webhook/Dockerfile", f"# {LINE}"),
        ("e2e/cluster/images/pause.Dockerfile", f"# {LINE}"),
        (".github/workflows/check.yml", f"# {LINE}"),
        ("e2e/sim/lib/nvml.c", f"// {LINE}"),
        ("charts/shared/_names.tpl", f"{{{{- /* {LINE} */ -}}}}"),
        ("charts/nvdra/templates/validate.yaml", f"{{{{- /* {LINE} */ -}}}}"),
        ("charts/nvdra/values.yaml", None),
        ("e2e/quickstarts/1.yaml", None),
        ("packages/x/src/x/_generated/api_pb2.py", None),
        ("README.md", None),
    ],
)
def test_it_is_written_as_the_file_needs_it(path: str, written: str | None) -> None:
    form = spdx_lines.form(path)
    assert (form and form.format(LINE)) == written


@pytest.mark.parametrize(
    ("text", "written", "expected"),
    [
        ('"""Does it."""\n', spdx_lines.HASH, f'# {LINE}\n"""Does it."""\n'),
        ("#!/bin/bash\nset -e\n", spdx_lines.HASH, f"#!/bin/bash\n# {LINE}\nset -e\n"),
        ("package x\n", spdx_lines.SLASHES, f"// {LINE}\n\npackage x\n"),
    ],
)
def test_it_stands_first_but_for_the_name_of_a_program(
    text: str, written: str, expected: str
) -> None:
    assert not spdx_lines.has_line(text)
    made = spdx_lines.with_line(text, written)
    assert made == expected
    assert spdx_lines.has_line(made)


def test_an_empty_file_needs_none() -> None:
    assert spdx_lines.has_line("\n")
