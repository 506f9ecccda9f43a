# SPDX-License-Identifier: Apache-2.0
"""The settings that all daemons of one domain must share, and where a domain keeps them. Pure.

IMEX permanently blocks the connection to a peer whose list of nodes differs from its own, and
daemons that look for each other in different objects never meet. So these settings are fixed when a
domain is made. An annotation of the domain keeps them, for a DaemonSet that has to be made again.
Source: docs/reference/imex.md, "DNS names"; docs/design.md, "Settled".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from nvdra_api import json_text, names
from nvdra_api.gates import FeatureGateError, FeatureGates
from nvdra_api.ids import DomainUID

MAX_NODES_LIMIT: Final = 10_000
"""The highest number of nodes that a daemon accepts; DNS names have four digits."""


class PeerNames(StrEnum):
    """Which DNS names a domain's daemons have."""

    SHARED = "shared"
    """Those of every domain, as in earlier releases and the reference driver."""
    DOMAIN = "domain"
    """Names with a hash of the domain's UID."""


@dataclass(frozen=True, slots=True)
class DomainSettings:
    """The settings of one domain.

    Attributes:
        max_nodes: Maximum number of the domain's nodes in one clique.
        gates: The feature gates of its daemons.
        peer_names: Which DNS names its daemons have.
    """

    max_nodes: int
    gates: FeatureGates
    peer_names: PeerNames = PeerNames.SHARED


def parsed(max_nodes: object, gates: object, peer_names: object) -> DomainSettings | None:
    """The settings for three texts; None if they are missing, or nothing that a daemon accepts.

    Gates that this release does not know are left out: the daemon's image is of this release. A
    domain that does not say which names it has is of an earlier release, and has the shared ones.
    """
    if not isinstance(gates, str) or not isinstance(max_nodes, int | str):
        return None
    return _parsed(max_nodes, gates, str(peer_names))


@lru_cache(maxsize=64)
def _parsed(max_nodes: int | str, gates: str, peer_names: str) -> DomainSettings | None:
    """Cached, because every pass over a domain asks, and almost all domains have the same."""
    try:
        is_own = peer_names == PeerNames.DOMAIN
        settings = DomainSettings(
            int(max_nodes),
            FeatureGates.parse_known(gates),
            PeerNames.DOMAIN if is_own else PeerNames.SHARED,
        )
    except (FeatureGateError, ValueError):
        return None
    return settings if 0 < settings.max_nodes <= MAX_NODES_LIMIT else None


def from_annotations(
    annotations: Mapping[str, str], uid: DomainUID, *, needs_uid: bool = True
) -> DomainSettings | None:
    """The settings that a domain was made with; None if it does not say them.

    Args:
        annotations: The domain's.
        uid: The domain's. An annotation of another one has come with a copy of its manifest.
        needs_uid: Whether an annotation without a UID, of an earlier release, says nothing: it may
            have been copied as well.
    """
    try:
        stored = json_text.parse(annotations.get(names.DOMAIN_SETTINGS_ANNOTATION, ""))
    except ValueError:
        return None
    if not isinstance(stored, dict) or stored.get("uid", None if needs_uid else uid) != uid:
        return None
    return parsed(
        stored.get("maxNodesPerImexDomain"), stored.get("featureGates"), stored.get("peerNames")
    )


def annotation(settings: DomainSettings, uid: DomainUID) -> str:
    """The annotation's value for a domain."""
    return json.dumps(
        {
            "maxNodesPerImexDomain": settings.max_nodes,
            "featureGates": settings.gates.full_text(),
            "peerNames": settings.peer_names.value,
            "uid": uid,
        },
        separators=(",", ":"),
    )
