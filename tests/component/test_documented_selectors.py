# SPDX-License-Identifier: Apache-2.0
"""The selectors that the page on troubleshooting corrects, asked of a real API server."""

import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses?dryRun=All"


class Row(NamedTuple):
    says: str
    wrong: str
    right: str


def rows() -> Iterator[Row]:
    """The rows of the table, each cell by what it has in backquotes."""
    _, _, table = PAGE.read_text().partition("| It says | The selector has | It should have |\n")
    for line in table.partition("\n\n")[0].splitlines()[1:]:
        cells = [re.findall("`([^`]+)`", cell) for cell in line.strip("|").split(" | ")]
        yield Row(cells[0][0].removesuffix("…"), cells[1][-1], cells[2][-1])


def created(server: ApiServer, expression: str) -> str:
    """What the API server says against a DeviceClass with this selector; empty if nothing."""
    body = {
        "metadata": {"name": "documented"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    try:
        server.create(CLASSES, body)
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    return ""


@pytest.mark.parametrize("row", tuple(rows()), ids=lambda row: row.wrong)
def test_the_wrong_one_is_refused_with_these_words_and_the_right_one_is_not(
    shared_apiserver: ApiServer, row: Row
) -> None:
    assert row.says in created(shared_apiserver, row.wrong), created(shared_apiserver, row.wrong)
    assert created(shared_apiserver, row.right) == ""


def test_there_are_such_rows() -> None:
    assert len(list(rows())) >= 3
