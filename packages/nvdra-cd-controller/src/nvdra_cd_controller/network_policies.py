# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy of a domain's daemons. Pure.

nvidia-imex has no authentication: who reaches its ports uses it. So only the daemons of the
same domain do. Which other connections daemons need, such as those to the API server, depends on
the installation; its chart says so in the form of a NetworkPolicy's rules.
"""

from typing import Annotated, Any, Final, Literal

from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_api.meta import JsonObject
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

KIND: Final[Literal["NetworkPolicy"]] = "NetworkPolicy"

_IMEX_PORTS: Final = [{"protocol": "TCP", "port": port} for port in names.IMEX_PORTS]


class _Part(BaseModel):
    """A part of a rule. Fields that this release does not know are an error.

    The API server would drop them, and the policy would never be what was asked for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Requirement(_Part):
    """One of the conditions of a label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class LabelSelector(_Part):
    """Objects with certain labels; an empty one selects all."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class Addresses(_Part):
    """Addresses of a network without some of its parts."""

    cidr: str
    exceptions: Annotated[tuple[str, ...], Field(alias="except")] = ()


class Peer(_Part):
    """Who is at the other end of a connection."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: Addresses | None = None


class Port(_Part):
    """A port, or ports from one to another."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    port: int | str | None = None
    end_port: int | None = None


class IngressRule(_Part):
    """Connections that are let in."""

    ports: tuple[Port, ...] = ()
    peers: Annotated[tuple[Peer, ...], Field(alias="from")] = ()


class EgressRule(_Part):
    """Connections that are let out."""

    ports: tuple[Port, ...] = ()
    peers: Annotated[tuple[Peer, ...], Field(alias="to")] = ()


class NetworkRules(_Part):
    """What the daemons of every domain may do besides talking to one another."""

    ingress: tuple[IngressRule, ...] = ()
    egress: tuple[EgressRule, ...] = ()


def network_policy(uid: DomainUID, namespace: str, rules: NetworkRules) -> JsonObject:
    """The policy of one domain's daemons, as the API server stores it.

    It has no finalizer. A controller of an earlier release, to which an administrator may go back,
    would not remove it, and the driver's namespace could not be deleted.
    """
    labels = {names.DOMAIN_LABEL: uid}
    daemons = {"matchLabels": labels}
    peers = [{"podSelector": daemons}]
    more = _without_empty(rules.model_dump(mode="json", by_alias=True))
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": KIND,
        "metadata": {"name": names.daemon_name(uid), "namespace": namespace, "labels": labels},
        "spec": {
            "podSelector": daemons,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": _IMEX_PORTS}, *more.get("ingress", ())],
            "egress": [{"to": peers, "ports": _IMEX_PORTS}, *more.get("egress", ())],
        },
    }


def _without_empty(value: Any) -> Any:
    """A rule without fields that say nothing, which the API server does not store.

    An empty selector stays, because it selects everything.
    """
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_empty(item)
        for key, item in value.items()
        if item not in (None, []) and (key, item) != ("matchLabels", {})
    }
