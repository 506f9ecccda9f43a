# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes releases that a lab can run, and their settings."""

import re
from collections.abc import Iterable, Mapping

from nvdra_lab.errors import LabError

# The default release; the others are built only on request.
DEFAULT = "1.36.3"
DEFAULT_RUNTIME = "containerd"
"""The container runtime of nodes, by its name in `runtimes.RUNTIMES`."""

# Feature gates that the driver needs, with the first minor release that knows each gate and the
# first one that enables it by default. A lab enables it in between.
DRA = "DynamicResourceAllocation"
GATES = {
    DRA: (26, 34),
    "DRAAdminAccess": (32, 34),
    "DRAConsumableCapacity": (34, 36),
    "DRADeviceBindingConditions": (34, 36),
    "DRADeviceTaints": (33, 36),
    "DRAExtendedResource": (34, 36),
    "DRAPartitionableDevices": (33, 36),
    "DRAPrioritizedList": (33, 34),
    "DRAResourceClaimDeviceStatus": (32, 33),
    "ResourceHealthStatus": (31, 36),
}

# Versions of resource.k8s.io that a minor release has but does not serve by default. v1 is served
# from 1.34 on; DRADeviceTaints needs the DeviceTaintRules of v1alpha3.
API_GROUP = "resource.k8s.io"
APIS = {
    32: ("v1beta1",),
    33: ("v1beta2", "v1beta1", "v1alpha3"),
    34: ("v1alpha3",),
}


def resolve(wanted: str, known: Iterable[str]) -> str:
    """The patch release that "1.36", "v1.36" or "1.36.3" means.

    Args:
        wanted: The user's input.
        known: The patch releases that can be built.

    Raises:
        LabError: There is no such release; the message lists the known ones.
    """
    releases = sorted(known, key=numbers)
    version = wanted.removeprefix("v")
    matching = [release for release in releases if f"{release}.".startswith(f"{version}.")]
    if not matching or not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise LabError(
            f"--kube {wanted}: a lab cannot run this release; known: {', '.join(releases)}"
        )
    return matching[-1]


def gates(kubernetes: str, wanted: Mapping[str, bool]) -> dict[str, bool]:
    """The feature gates that a lab of that release sets on every component.

    Args:
        kubernetes: The patch release.
        wanted: The user's gates, which take precedence. Without dynamic resource allocation, none
            of
            the gates that depend on it is set, because the components would refuse to start.
    """
    minor = numbers(kubernetes)[1]
    ours = {gate: True for gate, (since, on) in GATES.items() if since <= minor < on}
    if not wanted.get(DRA, True):
        ours = {gate: True for gate in ours if not gate.startswith("DRA")}
    return {**ours, **wanted}


def runtime_config(kubernetes: str, set_gates: Mapping[str, bool]) -> tuple[str, ...]:
    """The additional API versions that the API server must be told to serve."""
    if not set_gates.get(DRA, True):
        return ()
    return tuple(f"{API_GROUP}/{version}" for version in APIS.get(numbers(kubernetes)[1], ()))


def parse_gates(text: str) -> dict[str, bool]:
    """The gates of "A=true,B=false", in the syntax of Kubernetes' own programs.

    Raises:
        LabError: The syntax is wrong.
    """
    found = {}
    for setting in filter(None, text.split(",")):
        gate, _, value = setting.partition("=")
        if value not in ("true", "false"):
            raise LabError(f"--feature-gates {text}: {setting!r} is not GATE=true or GATE=false")
        found[gate] = value == "true"
    return found


def as_text(set_gates: Mapping[str, bool]) -> str:
    """Gates as "A=true,B=false", by name."""
    return ",".join(f"{gate}={str(on).lower()}" for gate, on in sorted(set_gates.items()))


def numbers(version: str) -> tuple[int, ...]:
    """The version 1.36.3 as (1, 36, 3), for comparing."""
    return tuple(int(part) for part in version.split("."))
