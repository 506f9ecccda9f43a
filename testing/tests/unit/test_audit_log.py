# SPDX-License-Identifier: Apache-2.0
"""What follows from an audit log: which rights nobody used, and what was refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.cluster import audit_log
from nvdra_testing.cluster.audit_log import Request, Right
from nvdra_testing.cluster.rbac import GrantedRule

USER = "system:serviceaccount:nvdra-system:plugin"


def event(verb: str, resource: str, code: int = 200, **fields: Any) -> dict[str, Any]:
    target: dict[str, Any] = {"resource": resource, **fields.pop("target", {})}
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": USER},
        "userAgent": "nvdra-gpu-plugin/0.1.0",
        "objectRef": target,
        "responseStatus": {"code": code},
        **fields,
    }


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def read(log: Path, *events: dict[str, Any]) -> list[Request]:
    log.write_text("".join(f"{json.dumps(each)}\n" for each in events))
    return list(audit_log.read(log))


def rule(namespace: str = "", **fields: list[str]) -> GrantedRule:
    return GrantedRule(namespace, {"apiGroups": [""], **fields})


def test_only_our_programs_answered_requests_for_resources_count(log: Path) -> None:
    ours = event("get", "pods", target={"namespace": "a", "name": "p"})
    others = event("get", "pods", userAgent="kubectl/v1.36.3")
    begun = event("get", "pods", stage="RequestReceived")
    discovery = {key: value for key, value in ours.items() if key != "objectRef"}
    (found,) = read(log, ours, others, begun, discovery)
    assert (found.verb, found.resource, found.namespace, found.name) == ("get", "pods", "a", "p")
    assert (found.user, found.program, found.code) == (USER, "nvdra-gpu-plugin", 200)


def test_a_right_is_used_by_a_successful_request_of_its_verb_resource_and_namespace(
    log: Path,
) -> None:
    rights = audit_log.rights(
        [
            rule(resources=["pods"], verbs=["get", "list"]),
            rule("a", resources=["events"], verbs=["create"]),
            rule("b", resources=["events"], verbs=["create"]),
        ]
    )
    requests = read(
        log,
        event("get", "pods", target={"namespace": "z"}),
        event("list", "pods", code=403),
        event("create", "events", code=201, target={"namespace": "a"}),
    )
    assert audit_log.unused(rights, requests) == [
        Right("create", "events", "b"),
        Right("list", "pods"),
    ]
    assert [each.verb for each in audit_log.refused(requests)] == ["list"]


def test_a_right_on_named_objects_is_used_by_a_request_for_one_of_them(log: Path) -> None:
    (right,) = audit_log.rights(
        [rule(resources=["secrets"], verbs=["get"], resourceNames=["cert"])]
    )
    assert audit_log.unused([right], read(log, event("get", "secrets", target={"name": "other"})))
    assert not audit_log.unused(
        [right], read(log, event("get", "secrets", target={"name": "cert"}))
    )


def test_the_right_to_write_a_drivers_statuses_is_used_by_a_patch_of_a_status(log: Path) -> None:
    (right,) = audit_log.rights(
        [
            GrantedRule(
                "",
                {
                    "apiGroups": ["resource.k8s.io"],
                    "resources": ["resourceclaims/driver"],
                    "resourceNames": ["gpu.nvidia.com"],
                    "verbs": ["associated-node:patch"],
                },
            )
        ]
    )
    target = {"apiGroup": "resource.k8s.io", "subresource": "status", "name": "claim"}
    assert not audit_log.unused([right], read(log, event("patch", "resourceclaims", target=target)))
    assert audit_log.unused([right], read(log, event("get", "resourceclaims", target=target)))


def test_the_table_says_how_often_or_why_never(log: Path) -> None:
    rights = [Right("get", "pods"), Right("list", "pods"), Right("watch", "pods")]
    requests = read(log, event("get", "pods"), event("get", "pods"))
    assert audit_log.table(rights, requests, {"list pods": "after a crash"}).splitlines() == [
        "      2  get pods",
        "      0  list pods  (after a crash)",
        "      0  watch pods  (nobody uses it)",
    ]
