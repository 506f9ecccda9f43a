# SPDX-License-Identifier: Apache-2.0
"""The annotations of a claim that say where its ComputeDomain is. Pure.

A claim's config has only the UID of the domain, and no request selects an object by its UID. The
controller's claim templates annotate their claims with the namespace and the name, so that a node
reads one object instead of a list. A tenant may write annotations: the object that was read must
have the UID that the config names.
Source: docs/reference/compute-domain.md, "Generated objects", "Scalability and latency" (KW-3).
"""

from collections.abc import Mapping
from typing import NamedTuple

from nvdra_api import names


class NamespacedName(NamedTuple):
    """Namespace and name of a ComputeDomain."""

    namespace: str
    name: str


def annotations(namespace: str, name: str) -> dict[str, str]:
    """The annotations of the claims of a domain."""
    return {names.DOMAIN_NAMESPACE_ANNOTATION: namespace, names.DOMAIN_NAME_ANNOTATION: name}


def domain_of(claim_annotations: Mapping[str, str]) -> NamespacedName | None:
    """Where the claim says that its domain is; None if it does not say it.

    Both become part of a path, so only names that the API server allows are accepted.
    """
    namespace = claim_annotations.get(names.DOMAIN_NAMESPACE_ANNOTATION, "")
    name = claim_annotations.get(names.DOMAIN_NAME_ANNOTATION, "")
    is_valid = names.is_dns_subdomain(namespace) and names.is_dns_subdomain(name)
    return NamespacedName(namespace, name) if is_valid else None
