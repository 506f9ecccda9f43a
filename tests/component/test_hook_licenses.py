# SPDX-License-Identifier: Apache-2.0
"""The licence texts in the repository are those of the nvidia-cdi-hook that images get."""

from pathlib import Path

from scripts import collect_hook_licenses


def test_the_texts_of_the_hook_are_those_of_its_modules(tmp_path: Path) -> None:
    there = collect_hook_licenses.licenses().HOOK_TEXTS
    made = tmp_path / "texts"
    assert collect_hook_licenses.collect(made) > 20
    assert texts(there) == texts(made), "python -m scripts.collect_hook_licenses"


def texts(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
