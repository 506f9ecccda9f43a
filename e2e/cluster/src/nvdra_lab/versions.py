"""The Kubernetes releases a lab can run, and what each must be told. Pure."""

import re
from collections.abc import Iterable, Mapping

from nvdra_lab.errors import LabError

# What everything runs on unless it is told another; the others are built only when asked for.
DEFAULT = "1.36.3"

# Feature gates that the driver needs, with the minor release that first knows each and the
# one that first has it on by default. In between a lab sets it.
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

# Versions of resource.k8s.io that a minor release has but does not serve by itself. From 1.34 v1 is
# served; there v1alpha3 has the DeviceTaintRules that the scheduler waits for with DRADeviceTaints.
API_GROUP = "resource.k8s.io"
APIS = {
    32: ("v1beta1",),
    33: ("v1beta2", "v1beta1", "v1alpha3"),
    34: ("v1alpha3",),
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


def gates(kubernetes: str, wanted: Mapping[str, bool]) -> dict[str, bool]:
    """The feature gates a lab of that release sets on every component.

    Args:
        kubernetes: The patch release.
        wanted: What the user asked for, which wins. Without dynamic resource allocation none of
            the gates that build on it is set: the components would refuse to start.
    """
    minor = numbers(kubernetes)[1]
    ours = {gate: True for gate, (since, on) in GATES.items() if since <= minor < on}
    if not wanted.get(DRA, True):
        ours = {gate: True for gate in ours if not gate.startswith("DRA")}
    return {**ours, **wanted}


def runtime_config(kubernetes: str, set_gates: Mapping[str, bool]) -> tuple[str, ...]:
    """The API versions that the API server is told to serve, besides those it serves anyhow."""
    if not set_gates.get(DRA, True):
        return ()
    return tuple(f"{API_GROUP}/{version}" for version in APIS.get(numbers(kubernetes)[1], ()))


def parse_gates(text: str) -> dict[str, bool]:
    """The gates of "A=true,B=false", as Kubernetes' own programs take them.

    Raises:
        LabError: It is not of that form.
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
