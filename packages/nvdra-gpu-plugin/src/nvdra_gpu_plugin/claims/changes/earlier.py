# SPDX-License-Identifier: Apache-2.0
"""What claims have changed on a GPU in this boot. A reboot undoes every change of a GPU."""

from collections.abc import Iterator

from nvdra_api.ids import GpuUUID

from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord


class EarlierChanges:
    """The claims of one node, by the GPUs that they change."""

    def __init__(self, index: GpuClaimIndex, boot_id: str) -> None:
        self._index = index
        self._boot_id = boot_id

    def of(self, gpu: GpuUUID) -> Iterator[GpuClaimRecord]:
        """The claims whose changes of the GPU were begun in this boot."""
        return (each for each in self._index.changing(gpu) if each.steps_boot == self._boot_id)
