"""What this node holds, in memory and in the state store: one commit per change.

Memory changes after the disk has: nobody acts on what a crash would lose.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from nvdra_api.runtime.node.store import Store
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import ClaimUID

from nvdra_gpu_plugin.records import Holding

Report = Callable[[Mapping[str, int], Mapping[str, int]], None]
"""Told after each change how many claims, and how many devices, of each kind are held."""


class HeldClaims(Mapping[ClaimUID, Holding]):
    """The claims prepared on this node, by UID.

    Raises:
        pydantic.ValidationError: A record was not written by us.
    """

    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report
        self._held = {
            uid: Holding.model_validate_json(record.payload)
            for uid, record in store.records().items()
        }
        self._tell()

    def __getitem__(self, uid: ClaimUID) -> Holding:
        return self._held[uid]

    def __iter__(self) -> Iterator[ClaimUID]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    async def take(self, ref: ClaimRef, holding: Holding) -> None:
        """Record that the claim is prepared; on the disk when this returns."""
        await self._store.put(ref, "prepared", holding.model_dump_json())
        self._held[ref.uid] = holding
        self._tell()

    async def release(self, uid: ClaimUID) -> None:
        """Forget the claim; gone from the disk when this returns."""
        await self._store.delete(uid)
        self._held.pop(uid, None)
        self._tell()

    def _tell(self) -> None:
        devices = [device for holding in self._held.values() for device in holding.devices]
        claims = Counter(holding.kind for holding in self._held.values())
        self._report(claims, Counter(device.kind for device in devices))
