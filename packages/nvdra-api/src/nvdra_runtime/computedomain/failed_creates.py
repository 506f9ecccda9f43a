# SPDX-License-Identifier: Apache-2.0
"""Events of a DaemonSet about pods that could not be created. Pure.

The DaemonSet controller reports such a pod (quota, admission webhook, pod security of the
namespace) in an Event of the DaemonSet only.
"""

import re
from collections.abc import Iterable
from typing import Final

from nvdra_api.meta import JsonObject

REASON: Final = "FailedCreate"
"""The reason of the Event for a pod that could not be created."""

_MAX_LENGTH: Final = 300
_POD_NAME: Final = re.compile(r'pods "[^"]*"')
"""Each attempt has another name, so that the same failure would never be the same text."""


def selector(name: str) -> str:
    """The field selector of a DaemonSet's Events about pods that could not be created."""
    return f"involvedObject.kind=DaemonSet,involvedObject.name={name},reason={REASON}"


def latest(events: Iterable[JsonObject]) -> JsonObject | None:
    """The Event that was seen last; None if there is none."""
    return max(events, key=last_seen, default=None)


def last_seen(event: JsonObject) -> str:
    """When it was last seen, as the API server writes it: these texts sort by time."""
    series = event.get("series") or {}
    seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(seen or "")


def cause(event: JsonObject) -> str:
    """Why the pod could not be created, in the API server's words and without the pod's name."""
    return shortened(str(event.get("message") or ""))


def shortened(message: str) -> str:
    """The words of such a message without the pod's name, on one line."""
    text = _POD_NAME.sub("pods", " ".join(message.split()))
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
