# SPDX-License-Identifier: Apache-2.0
"""The DNS names of a domain's daemons, by which IMEX knows its peers.

IMEX takes hosts with the same list of names for a node of its own domain. Names that all domains
share let it connect to a daemon of another one that has got a peer's former address, so they
contain a hash of the domain's UID. A domain that runs keeps the names that it was made with: IMEX
permanently blocks a peer whose list differs.
Source: docs/reference/imex.md, "DNS names"; docs/decisions/imex-daemon.md, "Which names do members
have?".
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nvdra_api.ids import DomainUID
from nvdra_runtime.computedomain.domain_settings import PeerNames

PREFIX: Final = "compute-domain-daemon-"
"""Prefix of every name of every domain, also of those that the reference driver writes."""

_HASH_LENGTH: Final = 10
"""40 bits in hexadecimal digits; as long as the reference driver's newer names."""


@dataclass(frozen=True, slots=True)
class DnsNames:
    """The names of one domain's daemons.

    Attributes:
        prefix: What precedes the index in each name.
    """

    prefix: str = PREFIX

    def name(self, index: int) -> str:
        """The name for an index: `compute-domain-daemon-3f1c0a92d7-0003`."""
        return f"{self.prefix}{index:04d}"

    def all(self, count: int) -> Iterator[str]:
        """The names of all possible peers, by index."""
        return map(self.name, range(count))


SHARED: Final = DnsNames()
"""The names of domains of earlier releases and of the reference driver: `…-daemon-0003`."""


def of_domain(uid: DomainUID, kind: str) -> DnsNames:
    """The names of a domain's daemons.

    Args:
        uid: The domain's.
        kind: One of `PeerNames`. Only those of kind `domain` are names that no other domain has.
    """
    if kind != PeerNames.DOMAIN:
        return SHARED
    digest = hashlib.sha256(uid.encode()).hexdigest()
    return DnsNames(f"{PREFIX}{digest[:_HASH_LENGTH]}-")
