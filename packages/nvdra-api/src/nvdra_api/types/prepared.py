"""What a prepared claim is to the kubelet: devices, and the CDI names that stand for them.

Source: spec/kubelet-dra-protocol.md §2.2, §2.4.
"""

from dataclasses import dataclass

from nvdra_api.types.ids import DeviceName, PoolName


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device, ready for a container.

    Attributes:
        requests: Base request names (`main`, never `main/sub`); empty stands for all of the claim.
        pool: As in the allocation result.
        device: As in the allocation result.
        cdi_ids: Qualified CDI names, `<vendor>/<class>=<name>`; the first one is what health
            reports call the device.
        share_id: Copy of the result's, None where it has none.
    """

    requests: tuple[str, ...]
    pool: PoolName
    device: DeviceName
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """The answer for one claim, in the order of its allocation results; equal for every repeat."""

    devices: tuple[PreparedDevice, ...]
