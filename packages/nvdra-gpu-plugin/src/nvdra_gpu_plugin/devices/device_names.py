"""Names of devices in ResourceSlices (docs/reference/gpu-devices.md, "Device names")."""

from nvdra_api.ids import DeviceName


def gpu_name(minor: int) -> DeviceName:
    """The device name of a whole GPU."""
    return DeviceName(f"gpu-{minor}")
