# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced atomically."""

from pathlib import Path

import pytest
from nvdra_runtime.node.files import remove_temporary_files, write_atomic


def test_a_file_is_replaced_with_its_mode_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text("old")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.mkdir()
    (path / "child").touch()
    with pytest.raises(OSError, match=r"spec\.json"):
        write_atomic(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    others = [".spec.json.tmpl.01234567", ".other.01234567", ".spec.json.0123456z", "spec.json"]
    for name in (*others, ".spec.json.01234567", ".spec.json.89abcdef"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path, {"spec.json"})
    assert {path.name for path in tmp_path.iterdir()} == set(others)
