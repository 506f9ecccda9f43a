# SPDX-License-Identifier: Apache-2.0
"""What was asked for: the request for a release of NVML as a value.

A release is asked for by a command in the plugin's pod, or by the Node's annotation
`gpu.nvidia.com/release-nvml`: `true` until it is removed, or a time such as `15m`; with `,force`
also while GPUs are in use.
"""

from datetime import datetime, timedelta

from nvdra_runtime.kubeletplugin.nvml_release import Origin, Release
from nvdra_runtime.settings import durations
from pydantic import BaseModel, ConfigDict

_FORCE = "force"


class ReleaseRequest(BaseModel):
    """A request to give up NVML.

    Attributes:
        origin: How it was asked for.
        duration_s: For how long; None until an administrator resumes.
        is_forced: Whether GPUs that are in use do not matter.
    """

    model_config = ConfigDict(frozen=True)

    origin: Origin
    duration_s: float | None
    is_forced: bool = False


def begin(request: ReleaseRequest, now: datetime, since: datetime | None = None) -> Release:
    """The release that a request begins at `now`, or that it goes on with `since`."""
    until = None if request.duration_s is None else now + timedelta(seconds=request.duration_s)
    return Release(
        origin=request.origin, since=since or now, until=until, is_forced=request.is_forced
    )


def parse_annotation(value: str) -> ReleaseRequest | None:
    """The request in an annotation's value; None if it asks for nothing.

    Raises:
        ValueError: The value is neither `true` nor `false` nor a time, or has other words.
    """
    how_long, *words = (part.strip() for part in value.split(","))
    if unknown := [word for word in words if word != _FORCE]:
        raise ValueError(f"{unknown[0]!r} is not the word {_FORCE}")
    if how_long in ("", "false"):
        return None
    duration_s = None if how_long == "true" else durations.parse_seconds(how_long)
    if duration_s is not None and duration_s <= 0:
        raise ValueError("must be longer than 0s")
    return ReleaseRequest(
        origin=Origin.ANNOTATION, duration_s=duration_s, is_forced=_FORCE in words
    )
