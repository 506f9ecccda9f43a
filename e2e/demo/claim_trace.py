# SPDX-License-Identifier: Apache-2.0
"""The chapter about the trace of one claim, from its creation to its running container."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import DEBUG_PORT, Cluster
from nvdra_testing.cluster.installation import NAMESPACE as DRIVERS
from nvdra_testing.cluster.kubectl import Kubectl
from rich.table import Table

from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import INDENT, Screen
from e2e.demo.tables import listing

PODS = ("chosen-gpu", "own-gpu-a")
"""Whose claim is shown: the first of these that is there."""

WHOLE = "in whole seconds"
"""What Kubernetes keeps of a claim's creation and a container's start."""


@dataclass(frozen=True)
class Moments:
    """The times of a claim and its pod."""

    created: datetime
    prepared: datetime
    running: datetime
    first_line: datetime


def run(screen: Screen, cluster: Cluster) -> None:
    """Show the plugin's own text of the trace, and the pod's moments below it."""
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    pod = next(name for name in PODS if pods.exists("pod", name))
    (claim,) = workloads.claims_of(pods, pod)
    uid = claim["metadata"]["uid"]
    node = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    screen.chapter(
        f"The trace of a claim, that of {pod}",
        "Its ID is the claim's UID, here and in Jaeger or Tempo (chart value global.otlp.endpoint)."
        " Before `prepare` the scheduler and the kubelet are at work; Kubernetes says when a claim "
        "was created and a container started to the second only.",
    )
    plugin = cluster.plugin_pod(node)
    screen.commands(
        [
            f"kubectl -n {DRIVERS} port-forward pod/{plugin} {DEBUG_PORT} & sleep 2",
            f"curl 'localhost:{DEBUG_PORT}/debug/traces/{uid}?format=text'; kill %1",
        ]
    )
    screen.blank()
    screen.quote(fit_width(cluster.trace(node, uid), screen.width - INDENT))
    screen.blank()
    story = cluster.trace(node, uid, "json")
    screen.show(table(_moments(pods, pod, claim["metadata"]["creationTimestamp"], story)))


def fit_width(text: str, width: int) -> str:
    """The trace with lines that are too long broken after the span's duration."""
    lines: list[str] = []
    for line in text.splitlines():
        head, _, tail = line.rpartition("  ")
        lines += [line] if len(line) <= width else [head.rstrip(), tail.rjust(width)]
    return "\n".join(lines)


def table(moments: Moments) -> Table:
    """The moments in their order, with the time since the claim's creation."""
    rows = listing("TIME (UTC)", "AFTER", "WHAT", "KNOWN FROM")
    rows.columns[1].justify = "right"
    for moment, what, source in (
        (moments.created, "the claim was created", f"its metadata, {WHOLE}"),
        (moments.prepared, "its GPU was prepared", "the end of the trace"),
        (moments.running, "the container was Running", f"the pod's status, {WHOLE}"),
        (moments.first_line, "it had printed a line", "kubectl logs --timestamps"),
    ):
        is_whole = WHOLE in source
        after = _after(moment - moments.created, is_whole)
        rows.add_row(_clock(moment, is_whole), after, what, source)
    return rows


def _moments(pods: Kubectl, pod: str, created: str, story: str) -> Moments:
    facts = json.loads(story)
    (container,) = pods.get("pod", pod)["status"]["containerStatuses"]
    begin, length = _moment(facts["start"]), timedelta(milliseconds=facts["duration_ms"])
    return Moments(
        created=_moment(created),
        prepared=begin + length,
        running=_moment(container["state"]["running"]["startedAt"]),
        first_line=_moment(pods.run("logs", "--timestamps", pod).split()[0]),
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _clock(moment: datetime, is_whole: bool) -> str:
    return f"{moment:%T}" if is_whole else f"{moment:%T.%f}"[:-3]


def _after(time: timedelta, is_whole: bool) -> str:
    seconds = time.total_seconds()
    return f"≈ {seconds:.0f} s" if is_whole else f"{seconds:.3f} s"
