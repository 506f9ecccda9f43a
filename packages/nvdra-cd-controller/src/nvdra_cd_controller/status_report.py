# SPDX-License-Identifier: Apache-2.0
"""The controller's state for `/debug/status` and the probes, answered from memory."""

from collections.abc import Iterator, Mapping
from typing import Any

from nvdra_api.ids import DomainUID
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus
from nvdra_runtime.http import probes
from nvdra_runtime.kube.leader_election import LeaderElector
from nvdra_runtime.kube.workqueue import WorkQueue
from nvdra_runtime.process.task_failures import TaskFailures

from nvdra_cd_controller.crds.keeper import CrdKeeper
from nvdra_cd_controller.informers import DomainInformers


class StatusReport:
    """The state of one controller.

    Attributes:
        lease: The leader election; None if it is disabled.
    """

    def __init__(
        self,
        informers: DomainInformers,
        queue: WorkQueue[DomainUID],
        lease: LeaderElector | None,
        crds: CrdKeeper,
        task_failures: TaskFailures,
    ) -> None:
        self.lease = lease
        self._informers = informers
        self._queue = queue
        self._crds = crds
        self._task_failures = task_failures

    def checks(self) -> Mapping[str, probes.Check]:
        """The readiness checks. A standby replica that reads the lease is ready to take over."""

        def check_informers() -> str | None:
            if self.lease is not None and not self.lease.is_leader:
                if self.lease.problem:
                    return self.lease.problem
                return probes.PassingRemark(f"stand-by; {self.lease.holder or 'nobody'} leads")
            return self._informers.problem or None

        return {
            "api": check_informers,
            "crds": lambda: probes.PassingRemark(self._crds.remark),
            "tasks": probes.tasks_check(self._task_failures),
        }

    def domain_statuses(self) -> Iterator[ComputeDomainStatus]:
        """The statuses of all domains."""
        return (domain.status for domain in self._informers.all_domains())

    def queue_counts(self) -> tuple[int, int]:
        """The number of domains in the workqueue, and of those whose last attempt failed."""
        return self._queue.depth, self._queue.failing_count

    def document(self) -> Mapping[str, Any]:
        """The leader, the workqueue, and every domain with its status."""
        lease = self.lease
        return {
            "leader": None
            if lease is None
            else {"identity": lease.identity, "isHeld": lease.is_leader, "holder": lease.holder},
            "problem": self._informers.problem,
            "queue": {"depth": self._queue.depth, "failing": self._queue.failing_count},
            "domains": [_domain_document(domain) for domain in self._informers.all_domains()],
        }


def _domain_document(domain: ComputeDomain) -> Mapping[str, Any]:
    return {
        "namespace": domain.metadata.namespace,
        "name": domain.metadata.name,
        "uid": domain.uid,
        "status": domain.status.status,
        "readyNodes": domain.status.ready_nodes,
        "expectedNodes": domain.status.expected_nodes,
        "conditions": {condition.type: condition.reason for condition in domain.status.conditions},
    }
