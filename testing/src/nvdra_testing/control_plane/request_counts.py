# SPDX-License-Identifier: Apache-2.0
"""Requests as the API server counts them in its metric `apiserver_request_total`."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_SERIES = re.compile(r"apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

WRITES = ("POST", "PUT", "PATCH", "APPLY")
DONE, CONFLICT = ("200", "201"), ("409", "422")
"""Codes of writes that succeeded, and of those that were refused because the object had changed."""


@dataclass(frozen=True)
class RequestCounts:
    """How many requests there have been.

    Attributes:
        by_kind: (resource with its subresource, verb, code) → number.
    """

    by_kind: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def since(self, before: "RequestCounts") -> "RequestCounts":
        """The requests after an earlier count."""
        return RequestCounts(
            {key: number - before.by_kind.get(key, 0.0) for key, number in self.by_kind.items()}
        )

    def writes(self, resource: str, codes: Collection[str] = DONE) -> float:
        """The number of writes of a resource that were answered with one of these codes."""
        return self.total(resource, WRITES, codes)

    def reads(self, resource: str) -> float:
        """The number of GETs and lists of a resource that were answered with objects."""
        return self.total(resource, ("GET", "LIST"), DONE)

    def total(self, resource: str, verbs: Collection[str], codes: Collection[str] = DONE) -> float:
        """The number of requests with these verbs that were answered with one of these codes."""
        return sum(
            number
            for (kind, verb, code), number in self.by_kind.items()
            if kind == resource and verb in verbs and code in codes
        )


def parse(metrics: str) -> RequestCounts:
    """The counts in the text of `/metrics`."""
    found: dict[tuple[str, str, str], float] = {}
    for match in _SERIES.finditer(metrics):
        labels = dict(_LABEL.findall(match["labels"]))
        resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
        key = resource, labels["verb"], labels["code"]
        found[key] = found.get(key, 0.0) + float(match["value"])
    return RequestCounts(found)
