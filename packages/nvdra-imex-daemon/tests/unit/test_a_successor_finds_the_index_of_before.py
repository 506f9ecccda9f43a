"""place.json: what one daemon of a node leaves to the next."""

from pathlib import Path

import pytest
from nvdra_api.types.ids import CliqueID
from nvdra_imex_daemon.place import Place

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    Place(tmp_path / "place.json", CLIQUE).keep(3)
    assert Place(tmp_path / "place.json", CLIQUE).last() == 3
    Place(tmp_path / "place.json", CLIQUE).keep(0)
    assert Place(tmp_path / "place.json", CLIQUE).last() == 0


def test_an_index_of_another_clique_says_nothing(tmp_path: Path) -> None:
    Place(tmp_path / "place.json", CLIQUE).keep(3)
    assert Place(tmp_path / "place.json", CliqueID("other.2")).last() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", f'{{"cliqueID": "{CLIQUE}", "index": "3"}}', "\xff"]
)
def test_a_file_that_says_nothing_is_no_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / "place.json").write_text(text, encoding="latin-1")
    assert Place(tmp_path / "place.json", CLIQUE).last() is None


def test_where_nothing_is_kept_nothing_is_known(tmp_path: Path) -> None:
    assert Place(tmp_path / "place.json", CLIQUE).last() is None
    Place(tmp_path / "missing" / "place.json", CLIQUE).keep(1)
    assert not (tmp_path / "missing").exists()
