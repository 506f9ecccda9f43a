# SPDX-License-Identifier: Apache-2.0
"""What users notice of a change of the driver: pods come and go, and three things are watched.

Prepares that fail, devices that are offered no more, and domains that are not Ready.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nvdra_testing.cluster import pod_load, published_devices, recorders
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_load import Load, Start, Stream
from nvdra_testing.cluster.published_devices import Absence
from nvdra_testing.cluster.recorders import Recording


@dataclass(frozen=True)
class Report:
    """What was noticed between two moments.

    Attributes:
        seconds: The time between them.
        starts: The pods that were scheduled and started.
        failed_prepares: The pod and the kubelet's words.
        absences: When devices that had been offered were not.
        not_ready: Each status of a domain other than Ready.
    """

    seconds: float
    starts: list[Start]
    failed_prepares: list[str]
    absences: list[Absence]
    not_ready: list[str]

    def __str__(self) -> str:
        longest = max((start.seconds for start in self.starts), default=0.0)
        absent = max((each.seconds for each in self.absences), default=0.0)
        return (
            f"{self.seconds:.0f} s, {len(self.starts)} pods started (the longest took "
            f"{longest:.1f} s), {len(self.failed_prepares)} failed prepares, "
            f"{len(self.absences)} absences of devices (the longest {absent:.1f} s), "
            f"{len(self.not_ready)} statuses of domains that were not Ready"
        )

    def check_none(self, absent_s: float = 0.0) -> None:
        """Check that nobody has noticed anything, while pods came and went.

        Args:
            absent_s: How long devices may be absent. A pool that gets another number of slices is
                incomplete from the first write to the last one, and the scheduler waits.
        """
        assert self.starts
        assert self.failed_prepares == []
        assert [each for each in self.absences if each.seconds > absent_s] == []
        assert self.not_ready == []


@dataclass(frozen=True)
class Watch:
    """Pods that come and go, and everything that is watched of the driver.

    Attributes:
        load: The pods.
        slices: Every version of every ResourceSlice.
        domains: Every version of every ComputeDomain of the test.
    """

    load: Load
    slices: Recording
    domains: Recording

    def report(self, began: float) -> Report:
        """What was noticed from a moment until now."""
        failed = [
            f"{event['involvedObject']['name']}: {event['message']}"
            for each in self.load.refusals.since(began)
            if each.content["type"] != "DELETED"
            for event in [each.content["object"]]
        ]
        statuses = [
            f"{domain['metadata']['name']}: {domain.get('status')}"
            for each in self.domains.since(began)
            if each.content["type"] != "DELETED"
            for domain in [each.content["object"]]
            if domain.get("status", {}).get("status") != "Ready"
        ]
        return Report(
            time.monotonic() - began,
            self.load.starts(began),
            failed,
            published_devices.absences(self.slices, began),
            statuses,
        )


@contextmanager
def watched(cluster: Cluster, pods: Kubectl, streams: Sequence[Stream]) -> Iterator[Watch]:
    """Pods come and go while the block runs, and are watched; each stream has had one pod."""
    with (
        recorders.record_versions(cluster.kubectl, "resourceslices") as slices,
        recorders.record_versions(pods, "computedomains") as domains,
        pod_load.running(pods, streams) as load,
    ):
        wait_flowing(pods, load, streams)
        yield Watch(load, slices, domains)


def wait_flowing(pods: Kubectl, load: Load, streams: Sequence[Stream]) -> None:
    """Wait until a pod of each stream has started."""

    def lacking() -> str | None:
        seen = {start.pod.rpartition("-")[0] for start in load.starts()}
        return ", ".join(sorted({each.name for each in streams} - seen)) or None

    pods.wait(lacking, "pods of every stream to start", 150)
