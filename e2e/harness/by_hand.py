"""Devices that a test publishes itself, for drivers of its own; classes and requests for them.

A device is no more than a name: `thing-0` and so on.
"""

from workloads import API, Manifest

from e2e.second_driver.orders import DRIVER


def device_class(driver: str) -> Manifest:
    """The class of all devices of a driver, by the driver's name."""
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }


def request(name: str = "thing", *, of: str = DRIVER) -> Manifest:
    """A request for one device of a driver, by its `device_class`."""
    return {"name": name, "exactly": {"deviceClassName": of}}


def slice_of(driver: str, node: str, devices: int = 1) -> Manifest:
    """A pool of one slice, `DRIVER-NODE`, on a node."""
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-{node}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"thing-{index}"} for index in range(devices)],
        },
    }
