# SPDX-License-Identifier: Apache-2.0
"""Devices that a test publishes itself, and device classes and requests for them.

The devices have names only: `thing-0` and so on. Also: when published devices were not there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from e2e.second_driver.control_files import DRIVER
from nvdra_testing.cluster.recorders import Recording
from nvdra_testing.cluster.workloads import API_VERSION, Manifest


def device_class(driver: str) -> Manifest:
    """A class with all devices of a driver; its name is that of the driver."""
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }


def device_request(name: str = "thing", *, driver: str = DRIVER) -> Manifest:
    """A request for one device of a driver, by its `device_class`."""
    return {"name": name, "exactly": {"deviceClassName": driver}}


def resource_slice(driver: str, node: str, devices: int = 1) -> Manifest:
    """A pool of one slice, `DRIVER-NODE`, on a node."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-{node}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"thing-{index}"} for index in range(devices)],
        },
    }


class Absence(NamedTuple):
    """A time at which devices that had been published were not.

    Attributes:
        pool: The node that they are of.
        driver: Their driver.
        devices: How many were not there at the worst moment.
        began: Monotonic seconds.
        seconds: How long; to the end of the recording if they did not come back.
    """

    pool: str
    driver: str
    devices: int
    began: float
    seconds: float


def absences(slices: Recording, since: float) -> list[Absence]:
    """The absences after a moment of devices that were published then.

    Args:
        slices: Every version of every ResourceSlice.
        since: Monotonic seconds.
    """
    published: dict[str, _Devices] = {}
    for each in slices.observations:
        if each.at < since:
            _apply(published, each.content)
    expected = _by_pool(published.values())
    open_absences: dict[tuple[str, str], Absence] = {}
    found: list[Absence] = []
    later = slices.since(since)
    for each in later:
        _apply(published, each.content)
        current = _by_pool(published.values())
        for pool, devices in expected.items():
            missing = len(devices - current.get(pool, frozenset()))
            known = open_absences.get(pool)
            if missing:
                worst = max(missing, known.devices if known else 0)
                began = known.began if known else each.at
                open_absences[pool] = Absence(*pool, worst, began, each.at - began)
            elif known:
                del open_absences[pool]
                found.append(known._replace(seconds=each.at - known.began))
    return [*found, *open_absences.values()]


_Devices = tuple[tuple[str, str], frozenset[str]]
"""Pool and driver of a slice, and the names of its devices."""


def _apply(published: dict[str, _Devices], event: Mapping[str, Any]) -> None:
    """Apply a watch event to the slices by name."""
    name, spec = event["object"]["metadata"]["name"], event["object"]["spec"]
    if event["type"] == "DELETED":
        published.pop(name, None)
        return
    devices = frozenset(str(each["name"]) for each in spec.get("devices") or [])
    published[name] = ((spec["pool"]["name"], spec["driver"]), devices)


def _by_pool(slices: Iterable[_Devices]) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], frozenset[str]] = {}
    for pool, devices in slices:
        found[pool] = found.get(pool, frozenset()) | devices
    return found
