# SPDX-License-Identifier: Apache-2.0
"""An index of the claims that are prepared on this node, by GPU and by pod.

With it, a prepare takes the same time however many claims are prepared.
"""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from nvdra_api.ids import ClaimUID, GpuUUID, PciAddress, PodUID

from nvdra_gpu_plugin.devices import device_names, device_use
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import MadePlaces

K = TypeVar("K", bound=Hashable)

_Index = dict[K, dict[ClaimUID, GpuClaimRecord]]


class GpuClaimIndex(Mapping[ClaimUID, GpuClaimRecord]):
    """All prepared claims, by UID."""

    def __init__(self, records: Iterable[GpuClaimRecord] = ()) -> None:
        self._records: dict[ClaimUID, GpuClaimRecord] = {}
        self._whole: _Index[str] = {}  # by each of a device's names, see `DeviceUse`
        self._parts: _Index[str] = {}
        self._shares: _Index[str] = {}
        self._changed: _Index[GpuUUID] = {}
        self._by_pod: _Index[PodUID] = {}
        self._made: dict[GpuUUID, MadePlaces] = {}
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
        former = self._discard(record.uid)
        self._records[record.uid] = record
        for index, name in self._entries(record):
            index.setdefault(name, {})[record.uid] = record
        for gpu in _changed_gpus(record):
            self._changed.setdefault(gpu, {})[record.uid] = record
        for pod in record.pods:
            self._by_pod.setdefault(pod, {})[record.uid] = record
        self._set_made(former, record)

    def made_on(self, gpu: GpuUUID) -> MadePlaces:
        """Where on a GPU MIG devices are made for claims. May be called on any thread."""
        return self._made.get(gpu, frozenset())

    def _set_made(self, *changed: GpuClaimRecord | None) -> None:
        """Set what is made on the GPUs of these records, each at once: other threads read it."""
        for gpu in {step.gpu for record in changed if record is not None for step in record.made}:
            self._made[gpu] = frozenset(
                (step.profile_id, step.start)
                for record in self.changing(gpu)
                for step in record.made
                if step.gpu == gpu
            )

    def remove(self, uid: ClaimUID) -> GpuClaimRecord | None:
        """Remove the claim's record. Returns it, or None if there was none."""
        record = self._discard(uid)
        self._set_made(record)
        return record

    def _discard(self, uid: ClaimUID) -> GpuClaimRecord | None:
        record = self._records.pop(uid, None)
        if record is not None:
            for index, name in self._entries(record):
                _drop(index, name, uid)
            for gpu in _changed_gpus(record):
                _drop(self._changed, gpu, uid)
            for pod in set(record.pods):
                _drop(self._by_pod, pod, uid)
        return record

    def _entries(self, record: GpuClaimRecord) -> Iterator[tuple[_Index[str], str]]:
        """Where the record is found by what its devices take, each place once."""
        uses = [device_use.use(device) for device in record.devices]
        for name in {name for use in uses for name in use.whole}:
            yield self._whole, name
        for name in {name for use in uses for name in use.parts}:
            yield self._parts, name
        for name in {name for use in uses for name in use.shares}:
            yield self._shares, name

    def conflicting_claim(self, device: GpuDeviceRecord, uid: ClaimUID) -> GpuClaimRecord | None:
        """The claim other than `uid` that has what the device takes; None if there is none.

        A device is held exclusively, unless it is shared, and a whole GPU excludes its MIG devices
        and the other way round. Admin access excludes no claim and no claim excludes it.
        """
        wanted = device_use.wanted(device)
        for names, indices in (
            (wanted.whole, (self._whole, self._parts, self._shares)),
            (wanted.parts, (self._whole, self._shares)),
            (wanted.shares, (self._whole, self._parts)),
        ):
            for name in names:
                for index in indices:
                    for other, record in index.get(name, {}).items():
                        if other != uid:
                            return record
        return None

    def holder(self, pci: PciAddress) -> GpuClaimRecord | None:
        """A claim that holds the GPU at this address as a whole; None if none does."""
        return next(iter(self._whole.get(pci, {}).values()), None)

    def bound(self) -> frozenset[PciAddress]:
        """The GPUs that claims have bound to vfio, or are about to. May be called on any thread."""
        records = list(self._records.values())
        return frozenset(step.pci for record in records for step in record.bound)

    def sharing_claim(self, device: GpuDeviceRecord, uid: ClaimUID) -> GpuClaimRecord | None:
        """A claim other than `uid` that has a share of the device; None if there is none."""
        for name in device_use.wanted(device).shares:
            for other, record in self._shares.get(name, {}).items():
                if other != uid:
                    return record
        return None

    def changing(self, gpu: GpuUUID, boot_id: str | None = None) -> Iterator[GpuClaimRecord]:
        """The claims of which a step changes the GPU, in this boot or in any."""
        for record in self._changed.get(gpu, {}).values():
            if boot_id in (None, record.steps_boot):
                yield record

    def users_of(
        self, gpus: Container[GpuUUID]
    ) -> Iterator[tuple[GpuClaimRecord, Sequence[GpuUUID]]]:
        """The claims that have some of the GPUs, or parts of them, and which.

        Not those that only monitor them.
        """
        for record in self._records.values():
            had = [device.gpu_uuid for device in record.devices if not device.is_admin]
            if found := [uuid for uuid in dict.fromkeys(had) if uuid in gpus]:
                yield record, found

    def held_numbers(self) -> Mapping[GpuUUID, int]:
        """The numbers in the names under which claims hold GPUs, or parts of them, each once.

        A claim with admin access counts where no other has the GPU or the number. May be called on
        any thread.
        """
        devices = [device for record in list(self._records.values()) for device in record.devices]
        found: dict[GpuUUID, int] = {}
        for device in sorted(devices, key=lambda device: device.is_admin):
            number = device_names.gpu_number(device.device)
            if device.gpu_uuid and number is not None and number not in found.values():
                found.setdefault(device.gpu_uuid, number)
        return found

    def claims_of_pods(self, pods: Iterable[PodUID]) -> Iterator[GpuClaimRecord]:
        """The claims that were reserved for one of these pods when they were prepared."""
        for pod in pods:
            yield from self._by_pod.get(pod, {}).values()


def _changed_gpus(record: GpuClaimRecord) -> set[GpuUUID]:
    return {step.gpu for step in record.steps}


def _drop(index: _Index[K], key: K, uid: ClaimUID) -> None:
    entries = index[key]
    del entries[uid]
    if not entries:
        del index[key]
