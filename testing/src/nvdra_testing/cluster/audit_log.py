# SPDX-License-Identifier: Apache-2.0
"""What accounts asked the API server for, from its audit log, beside what they may ask for.

The API server of a lab with `lab up --audit-log` writes one line for each request.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from nvdra_testing.cluster.rbac import Account, GrantedRule

OWN_PROGRAMS = "nvdra-"
"""Our programs' user agents begin so. Tests use tokens of pods with other programs."""

ON_BEHALF = {
    ("associated-node:patch", "resource.k8s.io/resourceclaims/driver"): (
        "patch",
        "resource.k8s.io/resourceclaims/status",
    )
}
"""Rights that no request names → the request for which the API server checks them."""


class Right(NamedTuple):
    """A verb on a resource in a namespace (empty: all); `names` are the objects, if restricted."""

    verb: str
    resource: str
    namespace: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For a table."""
        where = f" in {self.namespace}" if self.namespace else ""
        which = f" {'/'.join(self.names)}" if self.names else ""
        return f"{self.verb} {self.resource}{which}{where}"


@dataclass(frozen=True)
class Request:
    """One answered request.

    Attributes:
        user: Who asked.
        program: The beginning of the user agent.
        verb: As in a role.
        resource: With its group and subresource: `apps/daemonsets`, `pods`.
        namespace: Empty for those of the cluster.
        name: Of the object; empty for collections.
        code: The HTTP status of the answer.
        reason: Why the API server let it through, or not.
        is_allowed: Whether a role allowed it.
    """

    user: str
    program: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    reason: str
    is_allowed: bool

    def uses(self, right: Right) -> bool:
        """Whether the request needed the right."""
        verb, resource = ON_BEHALF.get((right.verb, right.resource), (right.verb, right.resource))
        return (
            (self.verb, self.resource) == (verb, resource)
            and right.namespace in ("", self.namespace)
            and (not right.names or right.resource != resource or self.name in right.names)
        )


def read(path: Path) -> Iterator[Request]:
    """The answered requests of our programs for resources."""
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            return  # the API server is writing it
        event = json.loads(line)
        if event["stage"] not in ("ResponseStarted", "ResponseComplete"):
            continue
        program = event.get("userAgent", "")
        if "objectRef" in event and program.startswith(OWN_PROGRAMS):
            yield _request(event, program)


def rights(rules: Iterable[GrantedRule]) -> list[Right]:
    """The rights of rules, one by one."""
    found = [
        Right(verb, f"{group}/{kind}".lstrip("/"), each.namespace, _names(each))
        for each in rules
        for group in each.rule["apiGroups"]
        for kind in each.rule["resources"]
        for verb in each.rule["verbs"]
    ]
    return sorted(set(found))


def unused(granted: Iterable[Right], requests: Iterable[Request]) -> list[Right]:
    """The rights that no successful request needed."""
    answered = set(_successful(requests))
    return [right for right in granted if not any(each.uses(right) for each in answered)]


def refused(requests: Iterable[Request]) -> list[Request]:
    """The requests that no role allowed.

    Others are forbidden although a role allows them, such as an Event in a namespace that ends.
    """
    codes = (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED)
    return sorted(
        {each for each in requests if each.code in codes and not each.is_allowed}, key=str
    )


def by_account(requests: Sequence[Request], account: Account) -> list[Request]:
    """The requests of one account."""
    return [each for each in requests if each.user == account.user]


def table(granted: Sequence[Right], requests: Sequence[Request], reasons: dict[str, str]) -> str:
    """Each right of an account, and how many successful requests needed it, or why none did."""
    rows = []
    successful = _successful(requests)
    for right in granted:
        count = sum(each.uses(right) for each in successful)
        why = "" if count else f"  ({reasons.get(str(right), 'nobody uses it')})"
        rows.append(f"{count:7}  {right}{why}")
    return "\n".join(rows)


def _successful(requests: Iterable[Request]) -> list[Request]:
    return [each for each in requests if each.code < HTTPStatus.BAD_REQUEST]


def _names(granted: GrantedRule) -> tuple[str, ...]:
    return tuple(granted.rule.get("resourceNames", ()))


def _request(event: dict[str, Any], program: str) -> Request:
    target, annotations = event["objectRef"], event.get("annotations", {})
    parts = [target.get("apiGroup", ""), target.get("resource", ""), target.get("subresource", "")]
    return Request(
        user=event["user"].get("username", ""),  # nobody knows whose token it was
        program=program.partition("/")[0],
        verb=event["verb"],
        resource="/".join(part for part in parts if part),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        reason=annotations.get("authorization.k8s.io/reason", ""),
        is_allowed=annotations.get("authorization.k8s.io/decision") == "allow",
    )
