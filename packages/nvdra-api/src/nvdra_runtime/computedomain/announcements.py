# SPDX-License-Identifier: Apache-2.0
"""What a daemon says of itself on its own pod, for the controller to put into the clique. Pure.

Every daemon of a clique watches the clique, so each write of it is sent to all of them. A write of
one's own pod is sent to nobody else, and the controller puts what many pods say into one write.
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
    """

    ip: str
    is_ready: bool = False
    message: str = ""
    preferred_index: int | None = None
    has_left: bool = False


def annotation(announcement: Announcement) -> str:
    """The value of the pod's annotation; what is not set is left out."""
    said = {
        "ip": announcement.ip,
        "ready": announcement.is_ready or None,
        "message": announcement.message or None,
        "index": announcement.preferred_index,
        "left": announcement.has_left or None,
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
    index, message = said.get("index"), said.get("message")
    return Announcement(
        ip=said["ip"],
        is_ready=said.get("ready") is True,
        message=message if isinstance(message, str) else "",
        preferred_index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        has_left=said.get("left") is True,
    )
