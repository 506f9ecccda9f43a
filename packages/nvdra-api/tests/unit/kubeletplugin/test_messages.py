# SPDX-License-Identifier: Apache-2.0
"""Answers for the kubelet: every text can be sent."""

from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kubeletplugin import messages

CLAIM = ClaimRef("team", "train", ClaimUID("u-1"))


def test_an_error_with_a_lone_surrogate_is_sent() -> None:
    prepared = messages.prepare_response([CLAIM], {CLAIM.uid: "a \ud800"}, with_share_ids=True)
    unprepared = messages.unprepare_response([CLAIM], {CLAIM.uid: "a \ud800"})
    for response in (prepared, unprepared):
        assert response.claims["u-1"].error == r"a \ud800"
        assert response.SerializeToString()
