"""What this node holds, in memory and in the state store: one commit per change.

Memory changes after the disk has: nobody acts on what a crash would lose.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from pydantic import ValidationError

from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.holdings import H
from nvdra_api.types.ids import ClaimUID

LOG = logs.logger(__name__)

Report = Callable[[Mapping[str, int], Mapping[str, int]], None]
"""Told after each change how many claims, and how many devices, of each kind are held."""


class Index(Protocol[H]):
    """Where held claims are found again: by UID, and by whatever else a driver asks for."""

    def __getitem__(self, uid: ClaimUID, /) -> H: ...
    def __iter__(self) -> Iterator[ClaimUID]: ...
    def __len__(self) -> int: ...

    def put(self, holding: H) -> None:
        """Add a claim, or replace what was known of it."""

    def remove(self, uid: ClaimUID) -> H | None:
        """Forget a claim; what it held, or None when it was not there."""


class ByUid(dict[ClaimUID, H]):
    """An index by UID alone."""

    def put(self, holding: H) -> None:
        """Add a claim, or replace what was known of it."""
        self[holding.uid] = holding

    def remove(self, uid: ClaimUID) -> H | None:
        """Forget a claim; what it held, or None when it was not there."""
        return self.pop(uid, None)


class HeldClaims(Mapping[ClaimUID, H]):
    """The claims prepared on this node, by UID.

    Attributes:
        unreadable: Claims that hold devices of which the record does not tell, in a form that we
            know, which ones. They are whole again when prepared anew, and gone when unprepared.
        doubt: Why there may be more that no record tells of; empty when there is not.
    """

    def __init__(
        self, store: Store, model: type[H], report: Report, index: Index[H] | None = None
    ) -> None:
        """Take over what the store holds.

        Args:
            store: Where records are.
            model: What a record is read as.
            report: Told how much is held.
            index: Empty; kept by us, and read by whoever else needs it.
        """
        self.unreadable: dict[ClaimUID, ClaimRef] = {}
        self.doubt = ""
        self._store = store
        self._model = model
        self._report = report
        self._index = ByUid[H]() if index is None else index
        self._claims: Counter[str] = Counter()
        self._devices: Counter[str] = Counter()
        self._awaited: defaultdict[ClaimUID, list[asyncio.Future[None]]] = defaultdict(list)
        self._read()
        self._report(self._claims, self._devices)

    def __getitem__(self, uid: ClaimUID) -> H:
        return self._index[uid]

    def __iter__(self) -> Iterator[ClaimUID]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def since(self, uid: ClaimUID) -> datetime:
        """When the claim was first prepared here; it is held or unreadable."""
        return self._store.records()[uid].created

    async def take(self, ref: ClaimRef, holding: H) -> None:
        """Record that the claim is prepared; on the disk when this returns."""
        await self._store.put(ref, "prepared", holding.model_dump_json())
        self._forget(ref.uid)
        self._remember(holding)
        self._report(self._claims, self._devices)

    async def release(self, uid: ClaimUID) -> None:
        """Forget the claim; gone from the disk when this returns."""
        await self._store.delete(uid)
        self._forget(uid)
        self._report(self._claims, self._devices)
        for waiting in self._awaited.pop(uid, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def released(self, uid: ClaimUID) -> None:
        """Wait until the claim is held no more; nothing to wait for when it is not."""
        if uid in self or uid in self.unreadable:
            waiting = asyncio.get_running_loop().create_future()
            self._awaited[uid].append(waiting)
            try:
                await waiting
            finally:
                self._leave(uid, waiting)

    def _leave(self, uid: ClaimUID, waiting: asyncio.Future[None]) -> None:
        left = [each for each in self._awaited.pop(uid, ()) if each is not waiting]
        if left:
            self._awaited[uid] = left

    def _remember(self, holding: H) -> None:
        self._index.put(holding)
        self._claims[holding.kind] += 1
        self._devices.update(device.kind for device in holding.devices)

    def _forget(self, uid: ClaimUID) -> None:
        self.unreadable.pop(uid, None)
        holding = self._index.remove(uid)
        if holding is not None:
            self._claims[holding.kind] -= 1
            self._devices.subtract(device.kind for device in holding.devices)

    def _read(self) -> None:
        """Take over what the store holds; one bad record must not keep the others from serving."""
        for uid, record in self._store.records().items():
            holding = self._holding(record.payload)
            if not isinstance(holding, str):
                self._remember(holding)
                continue
            self.unreadable[uid] = record.ref
            LOG.error(
                "A record cannot be read: no device is given to another claim until it is known "
                "what this one holds",
                claim=str(record.ref),
                error=holding,
            )

    def _holding(self, payload: str) -> H | str:
        """The content of a record, or what is wrong with it."""
        try:
            return self._model.model_validate_json(payload)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}"
