"""What the controller knows, for `/debug/status` and the probes; answers from memory."""

from collections.abc import Iterator, Mapping
from typing import Any

from nvdra_api.runtime.http import probes
from nvdra_api.runtime.kube.leases import Lease
from nvdra_api.runtime.kube.workqueue import WorkQueue
from nvdra_api.types.domains import ComputeDomain, ComputeDomainStatus
from nvdra_api.types.ids import DomainUID

from nvdra_cd_controller.cluster import Cluster


class Report:
    """One controller, seen from outside.

    Attributes:
        lease: What it waits for or holds; None without leader election.
    """

    def __init__(self, cluster: Cluster, queue: WorkQueue[DomainUID], lease: Lease | None) -> None:
        self.lease = lease
        self._cluster = cluster
        self._queue = queue

    def checks(self) -> Mapping[str, probes.Check]:
        """What must be so for domains to be served; a stand-by is ready to take over."""

        def watched() -> str | None:
            if self.lease is not None and not self.lease.is_held:
                return probes.Remark(f"stand-by; {self.lease.holder or 'nobody'} leads")
            return self._cluster.problem or None

        return {"api": watched}

    def statuses(self) -> Iterator[ComputeDomainStatus]:
        """Of all domains."""
        return (domain.status for domain in self._cluster.all_domains())

    def queue(self) -> tuple[int, int]:
        """Domains that are worked on or next, and those whose last try failed."""
        return self._queue.depth, self._queue.failing

    def document(self) -> Mapping[str, Any]:
        """Leader, queue, every domain with its status."""
        lease = self.lease
        return {
            "leader": None
            if lease is None
            else {"identity": lease.identity, "isHeld": lease.is_held, "holder": lease.holder},
            "problem": self._cluster.problem,
            "queue": {"depth": self._queue.depth, "failing": self._queue.failing},
            "domains": [_described(domain) for domain in self._cluster.all_domains()],
        }


def _described(domain: ComputeDomain) -> Mapping[str, Any]:
    return {
        "namespace": domain.metadata.namespace,
        "name": domain.metadata.name,
        "uid": domain.uid,
        "status": domain.status.status,
        "readyNodes": domain.status.ready_nodes,
        "expectedNodes": domain.status.expected_nodes,
        "conditions": {each.type: each.reason for each in domain.status.conditions},
    }
