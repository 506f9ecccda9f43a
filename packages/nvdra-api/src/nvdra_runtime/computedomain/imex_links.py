# SPDX-License-Identifier: Apache-2.0
"""What one node's IMEX says of its connections to the other nodes of the domain. Pure.

The daemon of the node reads the answer of nvidia-imex-ctl and writes the outcome to an annotation
of its pod, from which the controller reads it.
Source: docs/reference/imex.md, "What is known of nvidia-imex".
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nvdra_api import json_text, names
from nvdra_api.ids import CliqueID, NodeName

NODES_TIMEOUT_S: Final = 20.0
"""For one answer, which needs an answer of every node of the domain and is known to hang."""

_CONNECTED: Final = "CONNECTED"
_READY: Final = "READY"
_UNAVAILABLE: Final = "UNAVAILABLE"
_MAX_NODES: Final = 32
"""More nodes are counted only: annotations of a pod have 256 KiB together."""
_MAX_WORD: Final = 64


class UnreadableAnswerError(ValueError):
    """The answer is not what nvidia-imex-ctl is known to print."""


@dataclass(frozen=True, slots=True)
class ImexLinks:
    """What is wrong with the connections of one node.

    Attributes:
        broken: Nodes to which there is no connection, with IMEX's word for that, or UNAVAILABLE
            where there is one but the node gives no answer at its command port.
        others: Number of such nodes that are not in `broken`, because there are too many.
        failure: Why nothing is known of the connections; empty if it is known.
        strangers: Places of the node list, by their names, at which there is a connection to a host
            that is no member of the domain, with what that host calls itself. The name is empty
            where the place has no member any more: then it may be one that has left.
        node_clique: The clique that the GPUs of the node are in now, empty for none, if it is not
            the daemon's; None if it is.
    """

    broken: Mapping[NodeName, str] = field(default_factory=dict, hash=False)
    others: int = 0
    failure: str = ""
    strangers: Mapping[str, str] = field(default_factory=dict, hash=False)
    node_clique: CliqueID | None = None

    @property
    def are_well(self) -> bool:
        """Whether nothing is wrong."""
        is_here = self.node_clique is None
        return is_here and not (self.broken or self.others or self.failure or self.strangers)


WELL: Final = ImexLinks()
"""Nothing is wrong."""


@dataclass(frozen=True, slots=True)
class DomainHosts:
    """The hosts of a domain, by which an answer is read. A host is a name or an address.

    Attributes:
        own: This node's; one of them is in IMEX's node list. Empty while its IMEX is not READY.
        ready: Those of the other members that are ready, with their nodes.
        listed: Those of all members, ready or not.
        daemonset: Name of the domain's DaemonSet. The names of its pods begin with it, and a pod's
            name is its host's own name.
    """

    own: Collection[str]
    ready: Mapping[str, NodeName]
    listed: Collection[str] = ()
    daemonset: str = ""


def read_answer(output: bytes, hosts: DomainHosts) -> ImexLinks:
    """The connections of this node to the members, by an answer to `nvidia-imex-ctl -N -j`.

    What other nodes say of their connections is not looked at: each speaks for itself. That is
    asked of an IMEX that is READY; one that says something else here does not know its connections.

    Args:
        output: Standard output and standard error together.
        hosts: The domain's hosts.

    Raises:
        UnreadableAnswerError: The answer is something else.
    """
    try:
        nodes = _parse(output)
        own = next(each for each in nodes.values() if each.get("host") in hosts.own)
        connections: Mapping[str, Mapping[str, Any]] = own["connections"]
        broken = {
            hosts.ready[node["host"]]: word
            for number, node in nodes.items()
            if node["host"] in hosts.ready
            and (word := _link_word(connections.get(number, {}), node)) != _CONNECTED
        }
        strangers = {
            str(node["host"])[:_MAX_WORD]: stranger
            for number, node in nodes.items()
            if node["host"] not in hosts.own
            and connections.get(number, {}).get("status") == _CONNECTED
            and (stranger := _stranger(node, hosts)) is not None
        }
        if own["status"] == _READY:
            return ImexLinks(broken, strangers=strangers)
        return ImexLinks(failure=f"nvidia-imex-ctl -N says {str(own['status'])[:_MAX_WORD]} of it")
    except (ValueError, KeyError, AttributeError, TypeError, StopIteration) as error:
        raise UnreadableAnswerError(
            f"nvidia-imex-ctl -N -j printed something else: {error!r}"
        ) from error


def _parse(output: bytes) -> Mapping[str, Mapping[str, Any]]:
    start = output.index(b"{")
    answer: Mapping[str, Any] = json_text.parse(output[start:])
    nodes: Mapping[str, Mapping[str, Any]] = answer["nodes"]
    return nodes


def _stranger(node: Mapping[str, Any], hosts: DomainHosts) -> str | None:
    """What a host that is no member calls itself; None if nothing says that it is none."""
    if node["host"] not in hosts.listed:
        return ""
    name = str(node.get("hostName") or "")
    is_daemon = name.startswith(names.DAEMON_NAME_PREFIX)
    # Another name than that of a daemon's pod says nothing: IMEX may call its host otherwise.
    is_other = is_daemon and hosts.daemonset and not name.startswith(hosts.daemonset)
    return name[:_MAX_WORD] if is_other else None


def _link_word(connection: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    word = str(connection.get("status") or "INVALID")[:_MAX_WORD]
    return _UNAVAILABLE if word == _CONNECTED and node["status"] == _UNAVAILABLE else word


def lasting(before: ImexLinks, now: ImexLinks) -> ImexLinks:
    """What was wrong in two answers in a row: IMEX makes connections again by itself.

    A daemon of another domain is wrong at once. A member that has left may still be connected for a
    moment.
    """
    broken = {node: word for node, word in now.broken.items() if node in before.broken}
    strangers = {
        host: name for host, name in now.strangers.items() if name or host in before.strangers
    }
    return ImexLinks(broken, failure=now.failure if before.failure else "", strangers=strangers)


def encode(links: ImexLinks) -> str | None:
    """The value of the annotation; None if nothing is wrong, so that there is none.

    It does not say what strangers call themselves: that has the UID of another tenant's domain.
    """
    if links.are_well:
        return None
    nodes = sorted(links.broken)
    others = links.others + len(nodes[_MAX_NODES:])
    value = {
        **({"broken": {node: links.broken[node] for node in nodes[:_MAX_NODES]}} if nodes else {}),
        **({"others": others} if others else {}),
        **({"failure": links.failure} if links.failure else {}),
        **({} if links.node_clique is None else {"nodeClique": links.node_clique}),
        **({"strangers": sorted(links.strangers)[:_MAX_NODES]} if links.strangers else {}),
    }
    return json.dumps(value, separators=(",", ":"))


def decode(value: str | None) -> ImexLinks:
    """The links in an annotation. One that no daemon of ours wrote says nothing."""
    if not value:
        return WELL
    try:
        read: Mapping[str, Any] = json_text.parse(value)
        broken = {
            NodeName(str(node)): str(word)[:_MAX_WORD]
            for node, word in dict(read.get("broken") or {}).items()
        }
        strangers = {str(host)[:_MAX_WORD]: "" for host in list(read.get("strangers") or ())}
        return ImexLinks(
            broken,
            int(read.get("others") or 0),
            str(read.get("failure") or ""),
            strangers,
            _node_clique(read.get("nodeClique")),
        )
    except (ValueError, TypeError, AttributeError, OverflowError):
        return WELL


def _node_clique(value: object) -> CliqueID | None:
    return CliqueID(value[:_MAX_WORD]) if isinstance(value, str) else None
