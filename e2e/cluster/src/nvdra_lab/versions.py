"""The Kubernetes releases a lab can run, and what each must be told. Pure."""

import re
from collections.abc import Iterable

from nvdra_lab.errors import LabError

# What everything runs on unless it is told another; the others are built only when asked for.
DEFAULT = "1.36.3"

# Gates the driver's features need, by the minor release that first knows them. They are on by
# default from 1.36; naming them keeps a lab the same when a default changes.
GATES = {
    "DRAConsumableCapacity": 34,
    "DRADeviceBindingConditions": 34,
    "DRADeviceTaints": 33,
    "DRAExtendedResource": 34,
    "DRAPartitionableDevices": 33,
    "ResourceHealthStatus": 31,
}


def resolve(wanted: str, known: Iterable[str]) -> str:
    """The patch release that "1.36", "v1.36" or "1.36.3" means.

    Args:
        wanted: What the user typed.
        known: Patch releases that can be built.

    Raises:
        LabError: It is none of them; the message lists them.
    """
    releases = sorted(known, key=numbers)
    version = wanted.removeprefix("v")
    matching = [release for release in releases if f"{release}.".startswith(f"{version}.")]
    if not matching or not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise LabError(
            f"--kube {wanted}: not a release a lab can run; known: {', '.join(releases)}"
        )
    return matching[-1]


def gates(kubernetes: str) -> dict[str, bool]:
    """The feature gates a lab of that release sets on every component."""
    minor = numbers(kubernetes)[1]
    return {gate: True for gate, since in GATES.items() if since <= minor}


def numbers(version: str) -> tuple[int, ...]:
    """The version 1.36.3 as (1, 36, 3), for comparing."""
    return tuple(int(part) for part in version.split("."))
