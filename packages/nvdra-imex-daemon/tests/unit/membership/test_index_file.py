# SPDX-License-Identifier: Apache-2.0
"""place.json: the index that a daemon stores for the next one on its node."""

from pathlib import Path

import pytest
from nvdra_api.ids import CliqueID
from nvdra_imex_daemon.membership.index_file import IndexFile

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")


def test_a_written_index_is_read(tmp_path: Path) -> None:
    IndexFile(tmp_path / "place.json", CLIQUE).write(3)
    assert IndexFile(tmp_path / "place.json", CLIQUE).read() == 3
    IndexFile(tmp_path / "place.json", CLIQUE).write(0)
    assert IndexFile(tmp_path / "place.json", CLIQUE).read() == 0


def test_an_index_of_another_clique_is_ignored(tmp_path: Path) -> None:
    IndexFile(tmp_path / "place.json", CLIQUE).write(3)
    assert IndexFile(tmp_path / "place.json", CliqueID("other.2")).read() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", f'{{"cliqueID": "{CLIQUE}", "index": "3"}}', "\xff"]
)
def test_an_invalid_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "place.json").write_text(text, encoding="latin-1")
    assert IndexFile(tmp_path / "place.json", CLIQUE).read() is None


def test_a_missing_file_is_ignored(tmp_path: Path) -> None:
    assert IndexFile(tmp_path / "place.json", CLIQUE).read() is None
    IndexFile(tmp_path / "missing" / "place.json", CLIQUE).write(1)
    assert not (tmp_path / "missing").exists()
