# SPDX-License-Identifier: Apache-2.0
"""What a daemon says of itself on its own pod, for the controller to put into the clique. Pure.

Every daemon of a clique watches the clique, so each write of it is sent to all of them. A write of
one's own pod is sent to no other pod, and the controller puts what many pods say into one write.
Source: docs/reference/compute-domain.md, "Scalability and latency" (KW-2); docs/decisions/
imex-daemon.md, "Who writes the clique?".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nvdra_api import json_text, names


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one daemon says of itself. Its node, clique and UID are those of its pod.

    Attributes:
        ip: The address at which peers reach it.
        is_ready: Whether its IMEX is READY.
        message: Why it is not, in one line.
        preferred_index: The index that its node had last; None if that is not known.
        has_left: Whether the daemon has ended, so that it is no member any more.
        started: When the process started that says so, in seconds since 1970 by the node's clock;
            None of daemons before 0.2.0. What an earlier container of the pod has said stays on the
            pod until the next one has spoken.
    """

    ip: str
    is_ready: bool = False
    message: str = ""
    preferred_index: int | None = None
    has_left: bool = False
    started: int | None = None


def annotation(announcement: Announcement) -> str:
    """The value of the pod's annotation; what is not set is left out."""
    said = {
        "ip": announcement.ip,
        "ready": announcement.is_ready or None,
        "message": announcement.message or None,
        "index": announcement.preferred_index,
        "left": announcement.has_left or None,
        "started": announcement.started,
    }
    present = {key: value for key, value in said.items() if value is not None}
    return json.dumps(present, separators=(",", ":"), ensure_ascii=False)


def from_annotations(annotations: Mapping[str, str]) -> Announcement | None:
    """What the daemon of a pod says; None if it says nothing that can be read."""
    try:
        said = json_text.parse(annotations.get(names.DAEMON_ANNOTATION, ""))
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("ip"), str) or not said["ip"]:
        return None
    message = said.get("message")
    return Announcement(
        ip=said["ip"],
        is_ready=said.get("ready") is True,
        message=message if isinstance(message, str) else "",
        preferred_index=_number(said.get("index")),
        has_left=said.get("left") is True,
        started=_number(said.get("started")),
    )


def _number(found: object) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) else None
