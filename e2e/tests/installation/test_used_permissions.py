# SPDX-License-Identifier: Apache-2.0
"""Each account of the release used every right that its roles grant, and was refused nothing."""

from functools import partial
from typing import Any

import pytest
from nvdra_testing.cluster import audit_log, rbac, rights_in_circumstances
from nvdra_testing.cluster.audit_log import Request
from nvdra_testing.cluster.installation import NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.rbac import Account

Json = dict[str, Any]


@pytest.fixture(scope="module")
def manifests(installed: Any) -> list[Json]:
    """The release's objects, those of its test included."""
    helm = partial(installed.cluster.helm, "get")
    texts = [helm(what, RELEASE, "-n", NAMESPACE) for what in ("manifest", "hooks")]
    return [each for text in texts for each in rbac.parse_manifests(text)]


@pytest.fixture(scope="module")
def requests(installed: Any) -> list[Request]:
    """What the release's programs have asked the API server for until now."""
    return list(audit_log.read(installed.cluster.lab.audit_log))


def accounts(manifests: list[Json]) -> list[Account]:
    return [
        Account(each["metadata"]["namespace"], each["metadata"]["name"])
        for each in manifests
        if each["kind"] == "ServiceAccount"
    ]


def test_no_right_is_there_that_nobody_uses(manifests: list[Json], requests: list[Request]) -> None:
    never: list[str] = []
    needless: list[str] = []
    reasons = rights_in_circumstances.REASONS
    for account in accounts(manifests):
        granted = audit_log.rights(rbac.granted_rules(manifests, account))
        own = audit_log.by_account(requests, account)
        assert own, f"{account.name} has asked for nothing"
        circumstances = reasons.get(account.name, {})
        print(f"\n{account.name}\n{audit_log.table(granted, own, circumstances)}")
        idle = {str(right) for right in audit_log.unused(granted, own)}
        never += [f"{account.name}: {right}" for right in sorted(idle - set(circumstances))]
        known = {str(right) for right in granted}
        needless += [f"{account.name}: {each}" for each in circumstances if each not in known]
    assert never == []
    assert needless == [], "these circumstances are of rights that no role grants"


def test_no_request_is_refused(requests: list[Request], cluster: Cluster) -> None:
    assert len(requests) > 100
    assert audit_log.refused(requests) == []
