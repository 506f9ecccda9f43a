# SPDX-License-Identifier: Apache-2.0
"""Whether a daemon that has reported READY is alive now. Its entry may have outlived it.

A daemon of this release holds a lock in the domain's directory, which decides. Of another one, such
as the reference driver's, it is only known that it is dead: if its claim has not been prepared
since the node was booted, or if the status of its pod says so.

Source: docs/decisions/cd-plugin.md, "Which report of readiness counts?".
"""

import asyncio
from collections.abc import Callable
from typing import Final

from nvdra_api.ids import ClaimUID, DomainUID

from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.daemon.pod_lookup import DaemonPodLookup
from nvdra_cd_plugin.daemon.readiness import PodLookupResult
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.node.file_worker import FileWorker

_LOCK_IS_FREE: Final = (
    "its entry says READY, but its process has ended, or its nvidia-imex is not READY any more"
)
_OF_EARLIER_BOOT: Final = (
    "its entry says READY, but its claim has not been prepared since the node was booted"
)
_POD_INTERVAL_S: Final = 1.0
"""Between two reads of the pod of a daemon without a lock."""


class LivenessCheck:
    """A repeated check of one domain's daemon, for one wait."""

    def __init__(
        self,
        directories: DomainDirectories,
        files: FileWorker,
        lookup: DaemonPodLookup,
        is_of_this_boot: Callable[[ClaimUID], bool],
        domain: DomainUID,
    ) -> None:
        """Create it without reading a file.

        Args:
            directories: The directories of domains.
            files: The thread for files.
            lookup: Reads the pods of daemons.
            is_of_this_boot: Whether a claim was prepared since the node was booted.
            domain: The daemon's domain.
        """
        self._domain = domain
        self._directories = directories
        self._files = files
        self._lookup = lookup
        self._is_of_this_boot = is_of_this_boot
        self._found: PodLookupResult | None = None
        self._lookup_due = 0.0

    async def death_reason(self, daemon: DomainClaimRecord, deadline: float) -> str:
        """Why the daemon is dead although its entry says READY; empty if nothing says so.

        Args:
            daemon: The record of the daemon's claim.
            deadline: Monotonic seconds.

        Raises:
            RetryableError: `StateUnavailable`, `DeadlineExceeded`: the lock cannot be read.
        """
        is_held = await self._files.run(
            deadline, self._directories.is_ready_lock_held, self._domain, daemon.pods
        )
        if is_held is not None:
            return "" if is_held else _LOCK_IS_FREE
        if not self._is_of_this_boot(daemon.uid):
            return _OF_EARLIER_BOOT
        return await self._pods_reason(daemon)

    async def _pods_reason(self, daemon: DomainClaimRecord) -> str:
        """What the status of the daemon's pod says, read once a second."""
        now = asyncio.get_running_loop().time()
        if now >= self._lookup_due:
            self._found = await self._lookup.find(self._domain)
            self._lookup_due = now + _POD_INTERVAL_S
        pods = () if self._found is None else self._found.pods
        reasons = (pod.ended_because for pod in pods if pod.uid in daemon.pods)
        reason = next(filter(None, reasons), "")
        return f"its entry says READY, but {reason}" if reason else ""
