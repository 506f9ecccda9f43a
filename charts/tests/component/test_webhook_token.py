# SPDX-License-Identifier: Apache-2.0
"""What an API server answers to a thief of the webhook's token.

The account has all rights here: what is refused, an admission policy refuses.
"""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from nvdra_testing.control_plane.installation import WEBHOOK, WEBHOOKS, Installation
from nvdra_testing.control_plane.pod_tokens import Answer

Json = dict[str, Any]

PATH = f"{WEBHOOKS}/{WEBHOOK}-config"
STRATEGIC = "application/strategic-merge-patch+json"
EVERYTHING = {
    "apiGroups": ["*"],
    "apiVersions": ["*"],
    "operations": ["*"],
    "resources": ["*/*"],
    "scope": "*",
}
ANOTHER_SERVER = {"url": "https://192.0.2.1/", "caBundle": ""}

ATTACKS: Mapping[str, Json] = {
    "admissionReviewVersions": {"admissionReviewVersions": ["v1", "v1beta1"]},
    "clientConfig": {"clientConfig": ANOTHER_SERVER},
    "clientConfig.service": {"clientConfig": {"service": {"name": "x", "namespace": "default"}}},
    "failurePolicy": {"failurePolicy": "Ignore"},
    "matchConditions": {"matchConditions": []},
    "matchPolicy": {"matchPolicy": "Exact"},
    "name": {"name": "another.example.com"},
    "namespaceSelector": {"namespaceSelector": {}},
    "objectSelector": {"objectSelector": {"matchLabels": {"a": "b"}}},
    "rules": {"rules": [EVERYTHING]},
    "sideEffects": {"sideEffects": "NoneOnDryRun"},
    "timeoutSeconds": {"timeoutSeconds": 30},
}
"""A value for each field of a webhook."""


def assert_refused(answer: Answer) -> None:
    assert answer.status == 403, answer
    assert f"ValidatingAdmissionPolicy '{WEBHOOK}-config'" in answer.text
    assert "may change nothing of the webhooks but the caBundle" in answer.text


def test_the_webhook_publishes_its_ca(installed: Installation) -> None:
    stored = installed.admin.send("GET", PATH).body
    hooks = [
        {"name": hook["name"], "clientConfig": {"caBundle": "Y2E="}} for hook in stored["webhooks"]
    ]
    answer = installed.webhook.send("PATCH", f"{PATH}?dryRun=All", {"webhooks": hooks}, STRATEGIC)
    assert answer.status == 200, answer
    assert {hook["clientConfig"]["caBundle"] for hook in answer.body["webhooks"]} == {"Y2E="}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stolen_token_changes_no_webhook(installed: Installation, attack: str) -> None:
    stored = installed.admin.send("GET", PATH).body
    stored["webhooks"][0].update(copy.deepcopy(ATTACKS[attack]))
    assert_refused(installed.webhook.send("PUT", f"{PATH}?dryRun=All", stored))


def test_a_stolen_token_adds_and_removes_no_webhook(installed: Installation) -> None:
    stored = installed.admin.send("GET", PATH).body
    first, second = stored["webhooks"]
    for hooks in ([], [first], [first, second, {**second, "name": "another.example.com"}]):
        changed = {**stored, "webhooks": hooks}
        assert_refused(installed.webhook.send("PUT", f"{PATH}?dryRun=All", changed))


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a.example.com/b"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "gone"}]},
    ],
)
def test_a_stolen_token_changes_no_metadata(installed: Installation, metadata: Json) -> None:
    assert_refused(installed.webhook.merge(f"{PATH}?dryRun=All", {"metadata": metadata}))
