# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of a kind of change.

The data of a change is in the claim's record (`devices.changes`); the kind carries it out. Every
call can be repeated after a crash at any point, and callers hold the locks of the claim's GPUs.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import Step

ChangeT = TypeVar("ChangeT", bound=Step)
Keep = Callable[[ChangeT], Awaitable[None]]
"""Writes the change to the claim's record as it is after a part of it was made."""


class ChangeKind(Generic[ChangeT]):
    """One kind of change. What a kind does not need to override has no effect."""

    async def inspect(self, claim: GpuClaimRecord, change: ChangeT) -> ChangeT:
        """The change before its first effect in this boot, with what `revert` is to restore.

        Raises:
            DriverError: That cannot be known, or something foreign is in its place.
        """
        del claim
        return change

    async def apply(self, change: ChangeT, keep: Keep[ChangeT]) -> ChangeT:
        """Make the change, as far as it is not in force, and return it with what was made.

        Raises:
            DriverError: It cannot be made. `revert` undoes what was made.
        """
        del keep
        return change

    async def is_in_force(self, change: ChangeT) -> bool:
        """Whether the change, which was made in this boot, is still there.

        Raises:
            DriverError: The hardware does not say it.
        """
        del change
        return True

    async def check_place(self, change: ChangeT) -> None:
        """Check that nothing foreign is where a change was that is not in force any more.

        Raises:
            PermanentError: `UnknownDevice`.
        """

    async def revert(self, claim: GpuClaimRecord, change: ChangeT) -> Step | None:
        """Undo what was made of the change in this boot. Returns what is left to undo.

        Raises:
            DriverError: It cannot be undone.
        """
        del claim, change
        return None
