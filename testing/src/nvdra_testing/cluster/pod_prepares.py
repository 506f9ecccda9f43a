# SPDX-License-Identifier: Apache-2.0
"""Prepares of a pod's claims as the kubelet reports them, and making the kubelet retry them."""

from collections.abc import Callable
from uuid import uuid4

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.workloads import Manifest

FAILED = "FailedPrepareDynamicResources"
"""The reason of the kubelet's event on the pod."""

CLEANUP_PERIOD_S = 60
"""The period in which a kubelet looks for claims whose pods are gone."""

MARGIN_S = 45
"""Additional time for a loaded machine."""


RELEASES_THAT_COUNT_TWICE = frozenset({(1, 34), (1, 35)})
"""Releases whose kubelets count a device twice that is prepared again, after a restart, a reboot or
an error of another driver. The API server rejects the resulting pod status.
"""


def apply_pod_with_claim(space: Kubectl, name: str, *requests: Manifest) -> None:
    """Create a claim and a pod of the same name that uses it."""
    space.apply(workloads.claim(name, *requests))
    space.apply(workloads.pod(name, claims=[name]))


def failures(space: Kubectl, pod: str) -> list[str]:
    """What the kubelet says of the prepares of a pod that have failed."""
    return [message for reason, message in space.events(pod) if reason == FAILED]


def retry_until_ready(
    space: Kubectl,
    pod: str,
    timeout_s: float = CLEANUP_PERIOD_S + MARGIN_S,
    is_refused: Callable[[], bool] = lambda: False,
) -> bool:
    """Make the kubelet process a pod again until the pod is Ready.

    Without this, the kubelet retries 60 to 90 s after a failed prepare. It retries at once when the
    pod
    changes.

    Returns:
        Whether the pod is Ready; if not, its status is rejected and stays as it was.
    """

    def not_ready() -> str | None:
        why = space.not_ready(pod)
        if why is None or is_refused():
            return None
        space.run("annotate", "--overwrite", "pod", pod, f"tests/again={uuid4()}")
        return why

    space.wait(not_ready, f"pod {pod} to be Ready", timeout_s)
    return space.not_ready(pod) is None


def is_status_rejected(cluster: Cluster, node: str, space: Kubectl, pod: str) -> bool:
    """Whether the pod's status is rejected because its kubelet counts a device twice."""
    if cluster.release not in RELEASES_THAT_COUNT_TWICE:
        return False
    log = cluster.lab.run_checked("logs", f"{node}/kubelet").splitlines()
    named = f'pod="{space.namespace}/{pod}"'
    return any(named in line and "resourceID: Duplicate value" in line for line in log)


def wait_event(space: Kubectl, pod: str, word: str, timeout_s: float = CLEANUP_PERIOD_S) -> None:
    """Wait until an event of the pod contains the word."""

    def lacking() -> str | None:
        said = [f"{reason}: {message}" for reason, message in space.events(pod)]
        return None if any(word in each for each in said) else str(said)

    space.wait(lacking, f"an Event of pod {pod} that says {word!r}", timeout_s)
