# SPDX-License-Identifier: Apache-2.0
"""The daemon's state as a document for `/debug/status`, answered from memory."""

from collections.abc import Mapping
from typing import Any

from nvdra_runtime.process.clock import Clock

from nvdra_imex_daemon.__about__ import __version__
from nvdra_imex_daemon.configuration import dns_names
from nvdra_imex_daemon.daemon import Daemon
from nvdra_imex_daemon.membership.member_list import MemberList
from nvdra_imex_daemon.process.link_monitor import LinkMonitor
from nvdra_imex_daemon.process.supervisor import Supervisor
from nvdra_imex_daemon.settings import Settings


class StatusReport:
    """The state of one daemon."""

    def __init__(
        self,
        settings: Settings,
        daemon: Daemon,
        member_list: MemberList,
        supervisor: Supervisor,
        links: LinkMonitor,
        clock: Clock,
    ) -> None:
        self._names = dns_names.of_domain(settings.domain, settings.peer_names)
        self._settings = settings
        self._daemon = daemon
        self._member_list = member_list
        self._supervisor = supervisor
        self._links = links
        self._clock = clock

    def document(self) -> Mapping[str, Any]:
        """The state as JSON."""
        tracker, child = self._daemon.problem_tracker, self._supervisor.state
        error = tracker.error
        return {
            **identity(self._settings),
            "index": self._daemon.index,
            "isReady": error is None and self._daemon.index is not None,
            "lacks": None
            if error is None
            else {
                "reason": error.reason.value,
                "message": error.message,
                "remedy": error.remedy,
                "since": tracker.since.isoformat() if tracker.since else None,
            },
            "imex": {
                "phase": child.phase.name.lower(),
                "pid": child.pid or None,
                "starts": child.run,
                "isSignalDue": self._supervisor.is_signal_due,
                "seconds": round(self._clock.monotonic() - child.began, 1),
            },
            "peers": [
                {
                    "index": peer.index,
                    "name": self._names.name(peer.index),
                    "node": peer.node,
                    "ip": peer.ip,
                    "isReady": peer.is_ready,
                }
                for peer in self._daemon.peer_list.peers
            ],
            "links": {
                "broken": dict(self._links.links.broken),
                "failure": self._links.links.failure,
            },
            "leftOut": list(self._daemon.peer_list.problems),
            "watch": self._member_list.problem or "well",
        }


def identity(settings: Settings) -> Mapping[str, Any]:
    """The daemon's version, node, domain and clique."""
    return {
        "version": __version__,
        "node": settings.node,
        "domain": {
            "uid": settings.domain,
            "namespace": settings.compute_domain_namespace,
            "name": settings.compute_domain_name,
        },
        "clique": settings.clique,
    }
