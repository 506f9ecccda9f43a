"""What is held on this node, and do two uses of one board exclude each other?

Who holds a board, and what else a pod has, is found by index: a prepare costs the same with one
claim held and with thousands.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from nvdra_api.types.ids import ClaimUID, PodUID

from nvdra_gpu_plugin.records import GpuHolding, HeldGpu

K = TypeVar("K", bound=Hashable)

_Index = dict[K, dict[ClaimUID, GpuHolding]]


class Holdings(Mapping[ClaimUID, GpuHolding]):
    """Every claim held on this node, by UID."""

    def __init__(self, holdings: Iterable[GpuHolding] = ()) -> None:
        self._held: dict[ClaimUID, GpuHolding] = {}
        # A board by its PCI address and by its UUID, see `holder`.
        self._exclusive: _Index[str] = {}
        self._by_pod: _Index[PodUID] = {}
        for holding in holdings:
            self.put(holding)

    def __getitem__(self, uid: ClaimUID) -> GpuHolding:
        return self._held[uid]

    def __iter__(self) -> Iterator[ClaimUID]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def put(self, holding: GpuHolding) -> None:
        """Add a claim, or replace what was known of it."""
        self.remove(holding.uid)
        self._held[holding.uid] = holding
        for board in _boards(holding):
            self._exclusive.setdefault(board, {})[holding.uid] = holding
        for pod in holding.pods:
            self._by_pod.setdefault(pod, {})[holding.uid] = holding

    def remove(self, uid: ClaimUID) -> GpuHolding | None:
        """Forget a claim; what it held, or None when it was not there."""
        holding = self._held.pop(uid, None)
        if holding is not None:
            for board in _boards(holding):
                _drop(self._exclusive, board, uid)
            for pod in set(holding.pods):
                _drop(self._by_pod, pod, uid)
        return holding

    def holder(self, wanted: HeldGpu, uid: ClaimUID) -> GpuHolding | None:
        """The claim other than `uid` that stands in the way of `wanted`.

        A board is held exclusively unless it is held for monitoring, which excludes nobody and is
        excluded by nobody. It keeps its UUID when a new neighbour renumbers the bus at the next
        boot, so either name of it counts; of one that was not there when a record was rebuilt
        only the device's name is known.
        """
        if wanted.is_admin:
            return None
        for board in (wanted.pci, wanted.uuid, wanted.device):
            for other, holding in self._exclusive.get(board, {}).items():
                if other != uid:
                    return holding
        return None

    def of_pods(self, pods: Iterable[PodUID]) -> Iterator[GpuHolding]:
        """The claims that one of these pods was reserved for when they were prepared."""
        for pod in pods:
            yield from self._by_pod.get(pod, {}).values()


def _boards(holding: GpuHolding) -> set[str]:
    held = [device for device in holding.devices if not device.is_admin]
    return {name for device in held for name in _names(device)}


def _names(device: HeldGpu) -> tuple[str, ...]:
    return (device.pci, device.uuid) if device.uuid else (device.device,)


def _drop(index: _Index[K], key: K, uid: ClaimUID) -> None:
    entries = index[key]
    del entries[uid]
    if not entries:
        del index[key]
