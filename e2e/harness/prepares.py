"""What became of a pod's prepare: what the kubelet says of it, and how to have it repeated."""

from collections.abc import Callable
from uuid import uuid4

import workloads
from cluster import Cluster
from kubectl import Kubectl
from workloads import Manifest

FAILED = "FailedPrepareDynamicResources"
"""The reason of the kubelet's Event on the pod."""

LOOP_S = 60
"""How often a kubelet looks for claims whose pods are gone."""

SLACK_S = 45
"""What a loaded machine adds."""


COUNT_TWICE = frozenset({(1, 34), (1, 35)})
"""Releases whose kubelets count a device twice that is prepared again: after a restart or a reboot,
or because another driver of the claim failed. The API server takes no status that does."""


def begin(space: Kubectl, name: str, *requests: Manifest) -> None:
    """A pod with a claim, both of that name."""
    space.apply(workloads.claim(name, *requests))
    space.apply(workloads.pod(name, claims=[name]))


def insist(
    space: Kubectl,
    pod: str,
    timeout_s: float = LOOP_S + SLACK_S,
    is_refused: Callable[[], bool] = lambda: False,
) -> bool:
    """Until a pod is Ready, make its kubelet look at it again.

    By itself it looks 60 to 90 s after a prepare that failed; at once when the pod changes.

    Returns:
        Whether it is Ready; if not, its status is refused and stays as it was.
    """

    def not_ready() -> str | None:
        why = space.not_ready(pod)
        if why is None or is_refused():
            return None
        space.run("annotate", "--overwrite", "pod", pod, f"tests/again={uuid4()}")
        return why

    space.wait(not_ready, f"pod {pod} to be Ready", timeout_s)
    return space.not_ready(pod) is None


def is_refused(cluster: Cluster, node: str, space: Kubectl, pod: str) -> bool:
    """Whether the pod runs and its status stays, because its kubelet counts a device twice."""
    if cluster.release not in COUNT_TWICE:
        return False
    log = cluster.lab.must("logs", f"{node}/kubelet").splitlines()
    named = f'pod="{space.namespace}/{pod}"'
    return any(named in line and "resourceID: Duplicate value" in line for line in log)


def wait_event(space: Kubectl, pod: str, word: str, timeout_s: float = LOOP_S) -> None:
    """Until an Event of the pod has that word."""

    def lacking() -> str | None:
        said = [f"{reason}: {message}" for reason, message in space.events(pod)]
        return None if any(word in each for each in said) else str(said)

    space.wait(lacking, f"an Event of pod {pod} that says {word!r}", timeout_s)
