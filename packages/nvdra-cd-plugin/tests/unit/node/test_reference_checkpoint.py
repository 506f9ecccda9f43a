# SPDX-License-Identifier: Apache-2.0
"""The reference driver's checkpoint goes when none of its claims is prepared."""

import json
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_cd_plugin.node.reference_checkpoint import ReferenceCheckpoint

THEIRS, OURS = (ClaimUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"), ClaimUID("ours"))
COMPLETED = {THEIRS: {"checkpointState": "PrepareCompleted", "status": {}}}


def of_claims(**versions: Any) -> str:
    return json.dumps({"checksum": 1083090442, **versions})


@pytest.mark.parametrize(
    "content",
    [
        of_claims(v1={"preparedClaims": COMPLETED}),
        of_claims(v1={}, v2={"checksum": 1, "preparedClaims": COMPLETED, "nodeBootID": "b"}),
    ],
    ids=["v1 alone", "both versions"],
)
def test_it_stays_while_one_of_its_claims_is_prepared(tmp_path: Path, content: str) -> None:
    file = tmp_path / "checkpoint.json"
    file.write_text(content)
    checkpoint = ReferenceCheckpoint(tmp_path)
    assert not checkpoint.remove_unless_used({THEIRS, OURS})
    assert file.read_text() == content
    assert checkpoint.remove_unless_used({OURS})
    assert not file.exists()
    assert checkpoint.remove_unless_used({OURS}), "there is none"


def test_an_empty_one_goes_at_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text(of_claims(v1={}, v2={"checksum": 1}))
    assert ReferenceCheckpoint(tmp_path).remove_unless_used({OURS})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v2": 7}', '{"claims": {}}'])
def test_one_that_cannot_be_read_stays_while_any_claim_is_prepared(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "checkpoint.json"
    file.write_text(content)
    assert not ReferenceCheckpoint(tmp_path).remove_unless_used({OURS})
    assert file.exists()
    assert ReferenceCheckpoint(tmp_path).remove_unless_used(())
    assert not file.exists()
