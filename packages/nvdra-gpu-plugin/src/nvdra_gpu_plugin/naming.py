"""Device names ⇄ the hardware they stand for (spec/gpu-devices.md §7)."""

from nvdra_api.types.ids import DeviceName


def gpu(minor: int) -> DeviceName:
    """The name of a whole GPU, from its NVML minor number."""
    return DeviceName(f"gpu-{minor}")
