# SPDX-License-Identifier: Apache-2.0
"""Indexes of the records of prepared claims."""

from collections.abc import Iterator
from typing import Protocol

from nvdra_api.ids import ClaimUID

from nvdra_runtime.claims.records import RecordT


class RecordIndex(Protocol[RecordT]):
    """An index of records, by UID and by whatever else a driver looks up."""

    def __getitem__(self, uid: ClaimUID, /) -> RecordT: ...
    def __iter__(self) -> Iterator[ClaimUID]: ...
    def __len__(self) -> int: ...

    def put(self, record: RecordT) -> None:
        """Add a record, or replace the claim's former one."""

    def remove(self, uid: ClaimUID) -> RecordT | None:
        """Remove the claim's record. Returns it, or None if there was none."""


class UidIndex(dict[ClaimUID, RecordT]):
    """An index by UID alone."""

    def put(self, record: RecordT) -> None:
        """Add a record, or replace the claim's former one."""
        self[record.uid] = record

    def remove(self, uid: ClaimUID) -> RecordT | None:
        """Remove the claim's record. Returns it, or None if there was none."""
        return self.pop(uid, None)
