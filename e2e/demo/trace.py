"""The life of one claim, from its creation to its container at work, and where the time went."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import workloads
from cluster import DEBUG_PORT, Cluster
from cluster import NAMESPACE as DRIVERS
from kubectl import Kubectl
from rich.table import Table

from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen
from e2e.demo.tables import listing

PODS = ("chosen-gpu", "own-gpu-a")
"""Whose claim is shown: the first of these that is there."""

OF_THE_API = "Kubernetes keeps it as whole seconds"


@dataclass(frozen=True)
class Moments:
    """What is known of when a claim and its pod got where."""

    created: datetime
    prepared: datetime
    running: datetime
    first_line: datetime


def run(screen: Screen, cluster: Cluster) -> None:
    """Show the plugin's own text of the trace, and the pod's moments below it."""
    pods = cluster.kubectl.within(NAMESPACE)
    pod = next(name for name in PODS if pods.exists("pod", name))
    (claim,) = workloads.claims_of(pods, pod)
    uid = claim["metadata"]["uid"]
    node = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    screen.chapter(
        f"The trace of a claim, that of {pod}",
        "Its ID is the claim's UID, here and in Jaeger or Tempo (chart value global.otlp.endpoint)."
        " What is empty before `prepare` is the scheduler's and the kubelet's time.",
    )
    screen.commands(
        [
            f"kubectl -n {DRIVERS} port-forward pod/{cluster.plugin(node)} {DEBUG_PORT} &",
            f"curl 'localhost:{DEBUG_PORT}/debug/traces/{uid}?format=text'",
        ]
    )
    screen.quote("\n" + cluster.trace(node, uid))
    screen.quote("\n")
    story = cluster.trace(node, uid, "json")
    screen.show(table(_moments(pods, pod, claim["metadata"]["creationTimestamp"], story)))


def table(moments: Moments) -> Table:
    """The moments in their order, with the time since the claim's creation."""
    rows = listing("TIME (UTC)", "AFTER", "WHAT", "KNOWN FROM")
    rows.columns[1].justify = "right"
    for moment, what, source in (
        (moments.created, "the claim was created", f"its metadata; {OF_THE_API}"),
        (moments.prepared, "its GPU was prepared", "the end of the trace"),
        (moments.running, "the container was Running", f"the pod's status; {OF_THE_API}"),
        (moments.first_line, "it had printed a line", "kubectl logs --timestamps"),
    ):
        is_whole = OF_THE_API in source
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
    return f"{time.total_seconds():.0f} s" if is_whole else f"{time.total_seconds():.3f} s"
