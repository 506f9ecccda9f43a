"""What the daemon knows, as one document for `/debug/status`; answers from memory."""

from collections.abc import Mapping
from typing import Any

from nvdra_api.runtime.process.clock import Clock

from nvdra_imex_daemon import peers
from nvdra_imex_daemon.__about__ import __version__
from nvdra_imex_daemon.daemon import Daemon
from nvdra_imex_daemon.register import Register
from nvdra_imex_daemon.settings import Settings
from nvdra_imex_daemon.supervisor import Supervisor


class Report:
    """Everything about one daemon."""

    def __init__(
        self,
        settings: Settings,
        daemon: Daemon,
        register: Register,
        supervisor: Supervisor,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._daemon = daemon
        self._register = register
        self._supervisor = supervisor
        self._clock = clock

    def document(self) -> Mapping[str, Any]:
        """The document."""
        complaint, child = self._daemon.complaint, self._supervisor.state
        lack = complaint.lack
        return {
            **identity(self._settings),
            "index": self._daemon.index,
            "isReady": lack is None and self._daemon.index is not None,
            "lacks": None
            if lack is None
            else {
                "reason": lack.reason.value,
                "message": lack.message,
                "remedy": lack.remedy,
                "since": complaint.since.isoformat() if complaint.since else None,
            },
            "imex": {
                "phase": child.phase.name.lower(),
                "pid": child.pid or None,
                "starts": child.run,
                "seconds": round(self._clock.monotonic() - child.began, 1),
            },
            "peers": [
                {
                    "index": peer.index,
                    "name": peers.name(peer.index),
                    "node": peer.node,
                    "ip": peer.ip,
                    "isReady": peer.is_ready,
                }
                for peer in self._daemon.roster.peers
            ],
            "leftOut": list(self._daemon.roster.problems),
            "watch": self._register.problem or "well",
        }


def identity(settings: Settings) -> Mapping[str, Any]:
    """Who the daemon is, on whose node, in whose domain."""
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
