# SPDX-License-Identifier: Apache-2.0
"""What the pod of an MPS control daemon says about why the daemon is not ready. Pure."""

from collections.abc import Iterable
from typing import Final

from nvdra_api.meta import JsonObject

_MOST_LETTERS: Final = 500
"""Of a message: a kubelet's text may contain a whole log."""


def refusal(deployment: JsonObject) -> str:
    """Why no pod of a Deployment can be created; empty if that is not known."""
    status = deployment.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"its pod cannot be created: {_text(condition)}"
    return ""


def problem(pods: Iterable[JsonObject]) -> str:
    """Why the daemon is not ready, from its newest pod; never empty.

    A reason that only says that the kubelet is at work counts less than how the container ended.
    """
    # Names break ties: times have a precision of one second.
    newest = max(
        (pod for pod in pods if not pod["metadata"].get("deletionTimestamp")),
        key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]),
        default=None,
    )
    if newest is None:
        return "its Deployment has no pod yet"
    name, status = newest["metadata"]["name"], newest.get("status") or {}
    for container in status.get("containerStatuses") or ():
        state, last = container.get("state") or {}, container.get("lastState") or {}
        ended = state.get("terminated") or last.get("terminated") or {}
        waiting = state.get("waiting") or {}
        said = [_text(each) for each in (ended, waiting)]
        if any(said):
            return f"pod {name}: {'; '.join(filter(None, said))}"
        if "running" in state:
            return f"pod {name} runs, and its daemon has not said that it is ready"
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and (text := _text(condition)):
            return f"pod {name}: {text}"
    return f"pod {name}: {_text(status) or status.get('phase') or 'Pending'}"


def _text(source: JsonObject) -> str:
    """Reason and message of a part of a pod's status, in one line."""
    code = source.get("exitCode")
    reason = source.get("reason") or ("" if code is None else f"exit code {code}")
    message = " ".join((source.get("message") or "").split())[-_MOST_LETTERS:]
    return ": ".join(filter(None, (reason, message)))
