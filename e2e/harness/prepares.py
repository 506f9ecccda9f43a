"""What became of a pod's prepare: what the kubelet says of it, and how to have it repeated."""

from uuid import uuid4

import workloads
from kubectl import Kubectl
from workloads import Manifest

FAILED = "FailedPrepareDynamicResources"
"""The reason of the kubelet's Event on the pod."""

LOOP_S = 60
"""How often a kubelet looks for claims whose pods are gone."""

SLACK_S = 45
"""What a loaded machine adds."""


def begin(space: Kubectl, name: str, *requests: Manifest) -> None:
    """A pod with a claim, both of that name."""
    space.apply(workloads.claim(name, *requests))
    space.apply(workloads.pod(name, claims=[name]))


def insist(space: Kubectl, pod: str, timeout_s: float = LOOP_S + SLACK_S) -> None:
    """Until a pod is Ready, make its kubelet look at it again.

    By itself it looks 60 to 90 s after a prepare that failed; at once when the pod changes.
    """

    def not_ready() -> str | None:
        why = space.not_ready(pod)
        if why is not None:
            space.run("annotate", "--overwrite", "pod", pod, f"tests/again={uuid4()}")
        return why

    space.wait(not_ready, f"pod {pod} to be Ready", timeout_s)


def wait_event(space: Kubectl, pod: str, word: str, timeout_s: float = LOOP_S) -> None:
    """Until an Event of the pod has that word."""

    def lacking() -> str | None:
        said = [f"{reason}: {message}" for reason, message in space.events(pod)]
        return None if any(word in each for each in said) else str(said)

    space.wait(lacking, f"an Event of pod {pod} that says {word!r}", timeout_s)
