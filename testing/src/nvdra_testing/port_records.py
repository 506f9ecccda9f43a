# SPDX-License-Identifier: Apache-2.0
"""Records of the prepared claims of a driver of ports: for tests of what all drivers share."""

from nvdra_api.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_runtime.claims.records import DeviceRecord, PreparedClaimRecord


class PortRecord(DeviceRecord):
    """One allocated port of a prepared claim."""

    kind: str = "port"
    line: int

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """The qualified CDI device name."""
        return (f"example.com/port={self.line}",)


class PortClaimRecord(PreparedClaimRecord):
    """A prepared claim of ports."""

    devices: tuple[PortRecord, ...]


def record(number: int, *lines: int, pods: tuple[str, ...] = ("train-0",)) -> PortClaimRecord:
    """The record of claim `number` in the namespace `ml`, which has these ports."""
    return PortClaimRecord(
        namespace="ml",
        name=f"claim-{number}",
        uid=ClaimUID(f"uid-{number}"),
        pods=tuple(PodUID(f"pod-uid-{name}") for name in pods),
        pod_names=pods,
        devices=tuple(
            PortRecord(
                request="port",
                pool=PoolName("node-a"),
                device=DeviceName(f"port-{line}"),
                line=line,
            )
            for line in lines
        ),
    )
