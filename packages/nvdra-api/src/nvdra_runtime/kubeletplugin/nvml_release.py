# SPDX-License-Identifier: Apache-2.0
"""The release of NVML that is in force on this node, as all of its plugins see it.

The GPU plugin decides: it carries out the Node's annotation and the command `release`, and refuses
either while GPUs are in use. What is in force is in a file in its directory, which tells its next
process, and every other program that is about to open NVML. Source: docs/design.md, "The node's
owner comes first".
"""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import NodeName
from pydantic import BaseModel, ConfigDict

from nvdra_runtime.node import files
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

FILE_NAME: Final = "nvml-release.json"


class Origin(StrEnum):
    """How a release was asked for."""

    COMMAND = "command"
    ANNOTATION = "annotation"


class Release(BaseModel):
    """A release that is in force.

    Attributes:
        origin: How it was asked for.
        since: When it began.
        until: When it ends by itself; None if it does not.
        is_forced: Whether GPUs were in use when it began, or might have been.
    """

    model_config = ConfigDict(frozen=True)

    origin: Origin
    since: datetime
    until: datetime | None = None
    is_forced: bool = False

    def is_over(self, now: datetime) -> bool:
        """Whether its time has passed."""
        return self.until is not None and now >= self.until


class ReleaseState(BaseModel):
    """What the next process of the GPU plugin has to know.

    Attributes:
        release: The release that is in force; None if NVML may be used.
        annotation: The value of the annotation that has been carried out, so that a release which
            has ended does not begin again while the annotation stays.
    """

    model_config = ConfigDict(frozen=True)

    release: Release | None = None
    annotation: str = ""


def read(gpu_plugin_dir: Path) -> ReleaseState:
    """What the file says. If it is missing or cannot be read, nothing is released."""
    path = gpu_plugin_dir / FILE_NAME
    try:
        return ReleaseState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return ReleaseState()
    except (OSError, ValueError) as error:
        LOG.warning("Cannot read whether NVML is released", file=str(path), error=str(error))
        return ReleaseState()


def in_force(gpu_plugin_dir: Path, now: datetime) -> Release | None:
    """The release because of which NVML must not be used on this node now; None if it may be."""
    release = read(gpu_plugin_dir).release
    return None if release is None or release.is_over(now) else release


def write(gpu_plugin_dir: Path, state: ReleaseState) -> None:
    """Write the state to the disk; without anything to tell there is no file.

    Raises:
        OSError: It cannot be written.
    """
    path = gpu_plugin_dir / FILE_NAME
    if state == ReleaseState():
        path.unlink(missing_ok=True)
        files.fsync_directory(gpu_plugin_dir)
        return
    files.write_atomic(path, state.model_dump_json().encode())


def error(release: Release | None, node: NodeName) -> RetryableError:
    """Why NVML is not used while it is released, or is about to be."""
    return RetryableError(
        Reason.NVML_RELEASED,
        "an administrator works on the GPUs of this node, and the GPU plugin has released NVML"
        f"{until_text(release)}",
        how_it_ends(release, node),
        since=None if release is None else release.since,
    )


def how_it_ends(release: Release | None, node: NodeName) -> str:
    """What ends a release before its time."""
    if release is not None and release.origin is Origin.ANNOTATION:
        return f"it ends with: kubectl annotate node {node} {names.RELEASE_NVML_ANNOTATION}-"
    return "it ends with: nvdra-gpu-plugin resume, in the GPU plugin's pod"


def until_text(release: Release | None) -> str:
    """` until …`; empty if it does not end by itself."""
    return "" if release is None or release.until is None else f" until {rfc3339(release.until)}"


def rfc3339(moment: datetime) -> str:
    """The time in UTC to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
