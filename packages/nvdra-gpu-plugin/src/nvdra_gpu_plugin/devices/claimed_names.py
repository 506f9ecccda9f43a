# SPDX-License-Identifier: Apache-2.0
"""The CDI names that prepared claims were answered with.

A kubelet that has an answer keeps it: the names must exist for as long as the claim is prepared,
also after a reboot, and mean the same GPU.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from nvdra_api import names
from nvdra_api.ids import ClaimUID, DeviceUUID

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord


@dataclass(frozen=True, slots=True)
class ClaimedNames:
    """Names without the kind, and the GPU of each; only those whose GPU is known.

    Attributes:
        by_generation: The names by the generation of the spec that they are in. A generation that a
            claim refers to is there, even if no GPU of it is known.
        of_earlier_boots: Names of claims that were prepared in an earlier boot and not planned
            again yet. Specs of that boot do not describe today's hardware.
    """

    by_generation: Mapping[str, Mapping[str, DeviceUUID]] = field(
        default_factory=dict[str, Mapping[str, DeviceUUID]]
    )
    of_earlier_boots: Mapping[str, DeviceUUID] = field(default_factory=dict[str, DeviceUUID])


def claimed_names(
    records: Iterable[GpuClaimRecord], earlier_boots: Container[ClaimUID]
) -> ClaimedNames:
    """The names of prepared claims.

    Args:
        records: The records of all prepared claims.
        earlier_boots: The claims that are to be planned again.
    """
    by_generation: dict[str, dict[str, DeviceUUID]] = {}
    earlier: dict[str, DeviceUUID] = {}
    for record in records:
        if record.uid in earlier_boots:
            earlier.update(_names(record))
        else:
            by_generation.setdefault(record.generation, {}).update(_names(record))
    return ClaimedNames(by_generation, earlier)


def _names(record: GpuClaimRecord) -> Iterable[tuple[str, DeviceUUID]]:
    for device in record.devices:
        kind, _, name = device.cdi_id.partition("=")
        if kind == names.GPU_CDI_DEVICE_KIND and device.uuid:
            yield name, device.uuid
