# SPDX-License-Identifier: Apache-2.0
"""The file by which the plugin tells a daemon the clique of the node."""

from pathlib import Path

import pytest
from nvdra_api.ids import CliqueID
from nvdra_runtime.computedomain import node_clique


@pytest.mark.parametrize("clique", ["", "2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2"])
def test_what_was_written_is_read(tmp_path: Path, clique: str) -> None:
    (tmp_path / node_clique.FILE).write_bytes(node_clique.content(CliqueID(clique)))
    assert node_clique.read(tmp_path) == clique


@pytest.mark.parametrize("content", [None, b"", b"c.1", b"c" * 5000 + b"\n"])
def test_a_file_that_is_missing_or_not_whole_says_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / node_clique.FILE).write_bytes(content)
    assert node_clique.read(tmp_path) is None
