# SPDX-License-Identifier: Apache-2.0
"""Reports that processes of one user wait for those of another one in a claim shared by MPS.

They hang in cuInit without a message of their own. The daemon's command finds it out and writes a
file, `mps_layout.WAITING`.
"""

import asyncio
from pathlib import Path
from typing import Final

from nvdra_api.errors import Reason
from nvdra_api.ids import ClaimUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_gpu_plugin.mps.user_waits import UserWait

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two looks. Each costs a system call for each daemon."""

_TEXT: Final = (
    "processes of user {} wait on {} until those of user {} have ended, because MPS serves one "
    "user at a time; give all containers of the claim the same runAsUser, or set multiUser in "
    "mpsConfig, if the node's driver has it"
)


class UserReport:
    """Reports each wait once, as Events of the claim and its pods."""

    def __init__(
        self, prepared_claims: PreparedClaims[GpuClaimRecord], files: Worker, events: EventRecorder
    ) -> None:
        self._prepared_claims = prepared_claims
        self._files = files
        self._events = events
        self._reported: dict[tuple[ClaimUID, str], UserWait] = {}

    async def run(self) -> None:
        """Look at the daemons of prepared claims. Run until cancelled."""
        while True:
            claims = dict(self._prepared_claims.items())
            for key in [each for each in self._reported if each[0] not in claims]:
                del self._reported[key]
            for record in claims.values():
                with background_tasks.contain(
                    "Users of an MPS control daemon cannot be reported", claim=str(record.ref)
                ):
                    for step in record.daemons:
                        if step.directory:
                            await self._look(record, step)
            await asyncio.sleep(_INTERVAL_S)

    async def _look(self, record: GpuClaimRecord, step: ShareByMps) -> None:
        directory = DaemonDirectory(Path(step.directory))
        try:
            found = await self._files.run(lambda: directory.user_wait)
        except OSError:
            return  # what cannot be read now is looked at again
        key = record.uid, step.directory
        if found is None or self._reported.get(key) == found:
            return
        self._reported[key] = found
        text = _TEXT.format(found.waiting, ", ".join(step.devices), found.serving)
        LOG.info(
            "Processes of one user wait for those of another one",
            claim=str(record.ref),
            waiting=found.waiting,
            serving=found.serving,
        )
        self._events.emit_for_claim(
            record.ref, None, "Warning", Reason.MPS_NOT_READY, text, about="users"
        )
