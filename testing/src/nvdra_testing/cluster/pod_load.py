# SPDX-License-Identifier: Apache-2.0
"""A load of short pods with claims: the next one starts as soon as one has ended.

The pods belong to Jobs. Each has its own claim from a template, so that the plugins prepare and
unprepare all the time. How long each pod took is read from a recording of their versions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from nvdra_testing.cluster import recorders, workloads
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_prepares import FAILED
from nvdra_testing.cluster.recorders import Recording
from nvdra_testing.cluster.workloads import Manifest

ENDLESS = 10_000
"""More pods than a test lives to see."""
GONE_S = 120
SANDBOX = "PodReadyToStartContainers"
"""The condition of a pod that is set when its claims are prepared and its sandbox runs."""


class Stream(NamedTuple):
    """Pods of one kind on one node, some of which run at any time.

    Attributes:
        name: The name of its Job.
        node: Where the pods run.
        template: The claim template that they use.
        at_once: How many of them there are at a time.
        check: What a pod runs; it must succeed.
    """

    name: str
    node: str
    template: str
    at_once: int
    check: str


class Start(NamedTuple):
    """How long a scheduled pod waited for its claims and its sandbox."""

    pod: str
    node: str
    began: float
    seconds: float


class Refusal(NamedTuple):
    """A failed prepare.

    Attributes:
        pod: The pod.
        seconds: How long after the pod was scheduled; 0 if that was not seen.
        message: The kubelet's words.
    """

    pod: str
    seconds: float
    message: str


@dataclass(frozen=True)
class Load:
    """Streams of pods that run.

    Attributes:
        pods: Their namespace.
        versions: Every version of every pod.
        refusals: Every version of every Event about a failed prepare, of all namespaces.
    """

    pods: Kubectl
    versions: Recording
    refusals: Recording

    def starts(self, since: float = 0.0) -> list[Start]:
        """The pods that were scheduled after a moment and have started, in order."""
        return list(self._starts(since))

    def failed_prepares(self) -> list[str]:
        """Each failed prepare so far: the pod, and the kubelet's words."""
        return [f"{each.pod}: {each.message}" for each in self.refused()]

    def refused(self, since: float = 0.0) -> list[Refusal]:
        """The failed prepares after a moment, in order."""
        scheduled: dict[str, float] = {}
        for each in self.versions.observations:
            pod = each.content["object"]
            if pod["spec"].get("nodeName"):
                scheduled.setdefault(pod["metadata"]["name"], each.at)
        found = []
        for each in self.refusals.since(since):
            # Events of earlier tests are deleted with their namespaces.
            if each.content["type"] != "DELETED":
                event = each.content["object"]
                name = event["involvedObject"]["name"]
                found.append(
                    Refusal(name, each.at - scheduled.get(name, each.at), event["message"])
                )
        return found

    def wait_succeeded(self, timeout_s: float) -> int:
        """Wait until all pods that there are now have succeeded, and return their number."""
        names = set(self._phases())

        def lacking() -> str | None:
            waiting = {
                name: phase
                for name, phase in self._phases().items()
                if name in names and phase != "Succeeded"
            }
            return str(waiting) if waiting else None

        self.pods.wait(lacking, "the pods of the load to have succeeded", timeout_s)
        return len(names)

    def _phases(self) -> dict[str, str]:
        """Pod → its phase."""
        pods = self.pods.get("pods", "", "-l", "batch.kubernetes.io/job-name")
        return {each["metadata"]["name"]: each["status"]["phase"] for each in pods}

    def _starts(self, since: float) -> Iterator[Start]:
        scheduled: dict[str, float] = {}
        for each in self.versions.since(since):
            pod = each.content["object"]
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
            if node and not _has_sandbox(pod):
                scheduled.setdefault(name, each.at)
            elif name in scheduled:
                began = scheduled.pop(name)
                yield Start(name, node, began, each.at - began)


def _has_sandbox(pod: Manifest) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == SANDBOX and each["status"] == "True" for each in conditions)


@contextmanager
def running(pods: Kubectl, streams: Sequence[Stream]) -> Iterator[Load]:
    """Streams of pods while the block runs; afterwards their Jobs and all their pods are gone."""
    failed = ("events", "-A", "--watch-only", f"--field-selector=reason={FAILED}")
    with (
        recorders.record_versions(pods, *failed) as refusals,
        recorders.record_versions(pods, "pods", "--watch-only") as versions,
    ):
        for each in streams:
            pods.apply(_job(each))
        try:
            yield Load(pods, versions, refusals)
        finally:
            names = [each.name for each in streams]
            pods.run("delete", "job", *names, "--cascade=foreground", timeout_s=GONE_S)


def _job(stream: Stream) -> Manifest:
    pod = workloads.pod_spec(templates=[stream.template])
    pod["restartPolicy"] = "Never"
    pod["nodeSelector"] = {"kubernetes.io/hostname": stream.node}
    pod["containers"][0]["command"] = ["sh", "-c", stream.check]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": stream.name},
        "spec": {
            "parallelism": stream.at_once,
            "completions": ENDLESS,
            "backoffLimit": 0,
            "template": {"spec": pod},
        },
    }
