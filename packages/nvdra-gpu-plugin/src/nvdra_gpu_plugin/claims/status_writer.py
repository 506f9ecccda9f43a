# SPDX-License-Identifier: Apache-2.0
"""Writes into the status of prepared claims which hardware they have, after the answer.

Nothing waits for this. A claim whose pod has ended within the pause is never written. After a start
all claims are written again, one by one: a former process may not have got to it, and a MIG device
that was made again after a reboot has another UUID.
"""

import asyncio
import random
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError
from nvdra_api.ids import ClaimUID
from nvdra_api.meta import JsonObject
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict, Invalid
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.claims import device_statuses
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord

LOG = logs.logger(__name__)

_PAUSE_S: Final = 1.0
"""Before each write, so that no prepare is slowed down, nor the API server when a node starts."""

_CALL_TIMEOUT_S: Final = 10.0

_NOT_TAKEN_S: Final = 3600.0
"""After so long an API server that takes no entries may be another one, or its rules."""

_MISSING_RIGHT: Final = "resourceclaims/driver"
"""Since Kubernetes 1.36 a missing right for this is a problem of the object (422, not 403)."""

_RETRY: Final = Backoff(first_s=2.0, ceiling_s=300.0)

_FAILED: Final = (
    "Cannot write into a claim's status which devices it has got, and try again; pods are not "
    "affected"
)
_UNWRITABLE: Final = "The status of a claim cannot be written, and stays as it is"
_REFUSED: Final = (
    "The API server refuses to be told which devices claims have got; pods are not affected. Check "
    "the rules for resourceclaims/status and resourceclaims/driver in the plugin's role"
)
_DROPPED: Final = (
    "The API server does not keep which devices claims have got; pods are not affected. The "
    "feature gate DRAResourceClaimDeviceStatus is on by default since Kubernetes 1.33"
)

_APPLY: Final = "application/apply-patch+yaml"
_PARAMETERS: Final = {"fieldManager": names.GPU_DRIVER, "force": "true"}
"""Entries of other drivers in the same claim have other managers and stay as they are."""


class _NotTakenError(Exception):
    """The API server takes entries of no claim; the text says why, and what to do."""


class StatusWriter:
    """Applies the entries of this driver in `status.devices`."""

    def __init__(self, api: Client, prepared_claims: PreparedClaims[GpuClaimRecord]) -> None:
        """Create it; `run` writes.

        Args:
            api: The API server.
            prepared_claims: The claims of this node.
        """
        self._api = api
        self._prepared_claims = prepared_claims
        self._waiting: dict[ClaimUID, None] = dict.fromkeys(prepared_claims)
        self._written: dict[ClaimUID, list[JsonObject]] = {}
        self._woken = asyncio.Event()
        prepared_claims.on_prepared(self._note)
        prepared_claims.on_removed(self._forget)

    def _note(self, uid: ClaimUID) -> None:
        self._waiting[uid] = None
        self._woken.set()

    def _forget(self, uid: ClaimUID) -> None:
        """Claims may come and go faster than they are written: one that is gone waits no more."""
        self._waiting.pop(uid, None)
        self._written.pop(uid, None)

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0
        while True:
            while not self._waiting:
                self._woken.clear()
                await self._woken.wait()
            chance = random.random()  # noqa: S311 - spreads load
            await asyncio.sleep(_RETRY.delay(failures, chance) if failures else _PAUSE_S)
            uid = next(iter(self._waiting), None)
            if uid is None:
                continue
            del self._waiting[uid]
            with background_tasks.contain(_UNWRITABLE, claim=uid):  # the others go on
                try:
                    await self._write(uid)
                except _NotTakenError as error:
                    self._waiting.setdefault(uid)
                    LOG.info(str(error), again_in_s=_NOT_TAKEN_S)
                    await asyncio.sleep(_NOT_TAKEN_S)
                except DriverError as error:
                    failures += 1
                    self._waiting.setdefault(uid)
                    if failures == 1:
                        LOG.info(_FAILED, claim=uid, error=str(error))
                else:
                    failures = 0

    async def _write(self, uid: ClaimUID) -> None:
        """Apply the claim's entries, unless they are written already.

        Raises:
            _NotTakenError: The API server takes such entries of no claim.
            DriverError: It may succeed later.
        """
        record = self._prepared_claims.get(uid)
        if record is None or self._prepared_claims.is_started(uid):
            return
        entries = device_statuses.of_record(record, self._prepared_claims.prepared_at(uid))
        if not entries or self._written.get(uid) == entries:
            return
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        try:
            stored = await self._apply(record, entries, deadline)
        except Invalid as error:
            if _MISSING_RIGHT in error.server_text:
                raise _NotTakenError(f"{_REFUSED}: {error.server_text}") from error
            # Most likely it is not allocated any more, and about to be unprepared.
            LOG.v(2, "The status of a claim is refused", claim=uid, error=error.server_text)
            return
        except (PermanentError, Conflict) as error:
            LOG.v(4, "The claim is gone", claim=uid, error=str(error))
            return
        kept = stored.get("status", {}).get("devices") or ()
        if not any(each["driver"] == names.GPU_DRIVER for each in kept):
            raise _NotTakenError(_DROPPED)
        if uid in self._prepared_claims:
            self._written[uid] = entries

    async def _apply(
        self, record: GpuClaimRecord, entries: list[JsonObject], deadline: float
    ) -> JsonObject:
        """Apply the entries to this very claim. Returns the stored claim."""
        version = await self._api.dra_api_version(deadline)
        path = apiversions.claim_path(version, record.namespace, record.name)
        claim = {
            "apiVersion": apiversions.group_version(version),
            "kind": "ResourceClaim",
            "metadata": {"name": record.name, "namespace": record.namespace, "uid": record.uid},
            "status": {"devices": entries},
        }
        return await self._api.patch(f"{path}/status", claim, deadline, _APPLY, _PARAMETERS)
