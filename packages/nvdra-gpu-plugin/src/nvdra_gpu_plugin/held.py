"""What this node holds, in memory and in the state store: one commit per change.

Memory changes after the disk has: nobody acts on what a crash would lose.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import ClaimUID
from pydantic import ValidationError

from nvdra_gpu_plugin.records import Holding

LOG = logs.logger(__name__)

Report = Callable[[Mapping[str, int], Mapping[str, int]], None]
"""Told after each change how many claims, and how many devices, of each kind are held."""


class HeldClaims(Mapping[ClaimUID, Holding]):
    """The claims prepared on this node, by UID.

    Attributes:
        unreadable: Claims that hold devices of which the record does not tell, in a form that we
            know, which ones. They are whole again when prepared anew, and gone when unprepared.
    """

    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report
        self._held: dict[ClaimUID, Holding] = {}
        self.unreadable: dict[ClaimUID, ClaimRef] = {}
        self._read()
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
        self.unreadable.pop(ref.uid, None)
        self._tell()

    async def release(self, uid: ClaimUID) -> None:
        """Forget the claim; gone from the disk when this returns."""
        await self._store.delete(uid)
        self._held.pop(uid, None)
        self.unreadable.pop(uid, None)
        self._tell()

    def _read(self) -> None:
        """Take over what the store holds; one bad record must not keep the others from serving."""
        if self._store.set_aside is not None:
            LOG.error(
                "The state file was damaged and is set aside: claims prepared before are not known",
                file=str(self._store.set_aside),
            )
        for uid, record in self._store.records().items():
            holding = _holding(record.payload)
            if isinstance(holding, Holding):
                self._held[uid] = holding
                continue
            self.unreadable[uid] = record.ref
            LOG.error(
                "A record cannot be read: no GPU is given to another claim until this one is "
                "prepared or unprepared again",
                claim=str(record.ref),
                error=holding,
            )

    def _tell(self) -> None:
        devices = [device for holding in self._held.values() for device in holding.devices]
        claims = Counter(holding.kind for holding in self._held.values())
        self._report(claims, Counter(device.kind for device in devices))


def _holding(payload: str) -> Holding | str:
    """The content of a record, or what is wrong with it."""
    try:
        return Holding.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}"
