"""An index of the claims that are prepared on this node, by GPU and by pod.

With it, a prepare takes the same time however many claims are prepared.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from nvdra_api.ids import ClaimUID, PodUID

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord

K = TypeVar("K", bound=Hashable)

_Index = dict[K, dict[ClaimUID, GpuClaimRecord]]


class GpuClaimIndex(Mapping[ClaimUID, GpuClaimRecord]):
    """All prepared claims, by UID."""

    def __init__(self, records: Iterable[GpuClaimRecord] = ()) -> None:
        self._records: dict[ClaimUID, GpuClaimRecord] = {}
        self._exclusive: _Index[str] = {}  # by each of a GPU's names, see `conflicting_claim`
        self._by_pod: _Index[PodUID] = {}
        for record in records:
            self.put(record)

    def __getitem__(self, uid: ClaimUID) -> GpuClaimRecord:
        return self._records[uid]

    def __iter__(self) -> Iterator[ClaimUID]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: GpuClaimRecord) -> None:
        """Add a record, or replace the claim's former one."""
        self.remove(record.uid)
        self._records[record.uid] = record
        for gpu_id in _exclusive_gpu_ids(record):
            self._exclusive.setdefault(gpu_id, {})[record.uid] = record
        for pod in record.pods:
            self._by_pod.setdefault(pod, {})[record.uid] = record

    def remove(self, uid: ClaimUID) -> GpuClaimRecord | None:
        """Remove the claim's record. Returns it, or None if there was none."""
        record = self._records.pop(uid, None)
        if record is not None:
            for gpu_id in _exclusive_gpu_ids(record):
                _drop(self._exclusive, gpu_id, uid)
            for pod in set(record.pods):
                _drop(self._by_pod, pod, uid)
        return record

    def conflicting_claim(self, device: GpuDeviceRecord, uid: ClaimUID) -> GpuClaimRecord | None:
        """The claim other than `uid` that holds the device; None if there is none.

        A GPU is held exclusively, except with admin access, which excludes nobody and is excluded
        by nobody. Either its PCI address or its UUID identifies a GPU, because addresses may change
        at a reboot. If a record was recovered while its GPU was missing, only its name is known.
        """
        if device.is_admin:
            return None
        for gpu_id in (device.pci, device.uuid, device.device):
            for other, record in self._exclusive.get(gpu_id, {}).items():
                if other != uid:
                    return record
        return None

    def claims_of_pods(self, pods: Iterable[PodUID]) -> Iterator[GpuClaimRecord]:
        """The claims that were reserved for one of these pods when they were prepared."""
        for pod in pods:
            yield from self._by_pod.get(pod, {}).values()


def _exclusive_gpu_ids(record: GpuClaimRecord) -> set[str]:
    exclusive = [device for device in record.devices if not device.is_admin]
    return {gpu_id for device in exclusive for gpu_id in _gpu_ids(device)}


def _gpu_ids(device: GpuDeviceRecord) -> tuple[str, ...]:
    if not device.uuid:
        return (device.device,)
    return (device.pci, device.uuid) if device.pci else (device.uuid,)


def _drop(index: _Index[K], key: K, uid: ClaimUID) -> None:
    entries = index[key]
    del entries[uid]
    if not entries:
        del index[key]
