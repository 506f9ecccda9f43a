# SPDX-License-Identifier: Apache-2.0
"""The path for objects without a config of ours: it warns, and whatever is sent is allowed."""

import json

from nvdra_testing.admission import reviews, served
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.endpoints import WARN_PATH

CLUSTER = ClusterNames(frozenset(("mig.nvidia.com",)))


async def test_a_class_that_does_not_exist_is_told() -> None:
    async with served.serving(cluster=CLUSTER) as webhook:
        answer = await webhook.request("POST", WARN_PATH, reviews.review(reviews.claim_text([])))
    assert answer.response["allowed"]
    (warning,) = answer.response["warnings"]
    assert 'there is no DeviceClass "gpu.nvidia.com"' in warning


async def test_what_the_other_path_refuses_is_allowed() -> None:
    wrong = reviews.claim_text([reviews.entry('{"kind":"Nope"}')])
    of_another_form = reviews.claim_text([]).replace('"requests":[', '"requests":7,"more":[')
    unknown = reviews.review(reviews.claim_text([])).replace(b'"resourceclaims"', b'"others"')
    async with served.serving() as webhook:
        for sent in (reviews.review(wrong), reviews.review(of_another_form), unknown):
            refused = await webhook.review(sent)
            assert not refused.response["allowed"]
            allowed = await webhook.request("POST", f"{WARN_PATH}?timeout=2s", sent)
            assert allowed.response == {"uid": json.loads(sent)["request"]["uid"], "allowed": True}


async def test_what_is_no_review_is_a_bad_request_there_too() -> None:
    async with served.serving() as webhook:
        assert (await webhook.request("POST", WARN_PATH, b"{}")).status == 400
        assert (await webhook.request("GET", WARN_PATH)).status == 405
