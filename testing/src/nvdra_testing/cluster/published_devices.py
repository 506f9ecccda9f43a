"""Devices that a test publishes itself, and device classes and requests for them.

The devices have names only: `thing-0` and so on.
"""

from e2e.second_driver.control_files import DRIVER
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
