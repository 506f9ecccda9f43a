# SPDX-License-Identifier: Apache-2.0
"""Deletes what is left of MPS control daemons whose claims are not prepared any more.

An unprepare leaves the daemon's directory, which forbids the daemon, and its Deployment: it does
not wait for the API server. Here the Deployment is deleted as soon as the API server answers, and
then the directory. A crash, a reboot or a lost state file leave the same. Nothing is requested
while nothing is left, but for one list at the start.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.mps import daemon_files, deployment
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_gpu_plugin.mps.daemons import MpsDaemons
from nvdra_gpu_plugin.mps.deployment import DaemonSettings

LOG = logs.logger(__name__)

_RETRY_S: Final = 10.0
"""After the API server has not answered."""
_UNDER_WAY_S: Final = 1.0
"""Between two looks while a daemon ends, or a claim is being unprepared. They are at files only: an
uninstallation is to find nothing left soon after the last claim is gone."""
_SETTLE_S: Final = 0.5
"""After a daemon was stopped its record is removed, and often the next claim is unprepared."""
_CALL_TIMEOUT_S: Final = 10.0


class DeploymentCollector:
    """Collects the daemons of one node."""

    def __init__(
        self,
        api: Client,
        settings: DaemonSettings,
        plugin_dir: Path,
        files: Worker,
        removals: Worker,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        *,
        lists_at_start: bool,
    ) -> None:
        """Create it without any call.

        Args:
            api: The API server.
            settings: The namespace of the Deployments, and the node.
            plugin_dir: The plugin's directory.
            files: The thread for files.
            removals: The thread for removing directories, however much is in them.
            prepared_claims: What they have is kept.
            lists_at_start: Whether to look for Deployments whose directory is gone, too.
        """
        self._api = api
        self._path = deployment.PATH.format(namespace=settings.namespace)
        self._node = deployment.node_value(settings.node)
        self._plugin_dir = plugin_dir
        self._files = files
        self._removals = removals
        self._prepared_claims = prepared_claims
        self._is_listed = not lists_at_start
        self._reported: dict[str, str] = {}
        self._large: set[str] = set()

    async def run(self, daemons: MpsDaemons, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Collect whenever something is left. Run until cancelled.

        Args:
            daemons: Starts daemons; its lock of a claim is held while what is left is deleted.
            recovery: Until it is done, records may be missing whose daemons run.
        """
        await recovery.done.wait()
        while True:
            daemons.stopped.clear()
            pause_s = await self._try_collect(daemons)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await daemons.stopped.wait()
            await asyncio.sleep(_SETTLE_S)

    async def _try_collect(self, daemons: MpsDaemons) -> float | None:
        """Returns in how many seconds to try again; None if nothing is left."""
        pauses_s: list[float | None] = []
        try:
            directories = await self._directories()
            self._forget(directories)
            pauses_s += [
                await self._try_collect_one(directory, daemons) for directory in directories
            ]
            if not self._is_listed:
                await self._delete_others()
                self._is_listed = True
            self._reported.pop("", None)
        except (DriverError, OSError) as error:
            self._report("", error)
            pauses_s.append(_RETRY_S)
        return min((each for each in pauses_s if each is not None), default=None)

    async def _try_collect_one(
        self, directory: DaemonDirectory, daemons: MpsDaemons
    ) -> float | None:
        """As `_try_collect`. What one claim has left keeps nothing of another."""
        name = directory.path.name
        with background_tasks.contain("An MPS control daemon cannot be deleted", daemon=name):
            try:
                is_left = await self._collect(directory, daemons)
            except (DriverError, OSError) as error:
                self._report(name, error)
                return _RETRY_S
            self._reported.pop(name, None)
            return _UNDER_WAY_S if is_left else None
        return _RETRY_S

    def _report(self, daemon: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if self._reported.get(daemon) != text:
            LOG.warning(
                "What is left of an MPS control daemon cannot be deleted yet",
                daemon=daemon,
                error=text,
            )
        self._reported[daemon] = text

    def _forget(self, directories: list[DaemonDirectory]) -> None:
        """Forget what was reported of directories that are gone."""
        names = {directory.path.name for directory in directories}
        self._large &= names
        for name in self._reported.keys() - names - {""}:
            del self._reported[name]

    async def _directories(self) -> list[DaemonDirectory]:
        return await self._files.run(lambda: list(daemon_files.all_of(self._plugin_dir)))

    async def _collect(self, directory: DaemonDirectory, daemons: MpsDaemons) -> bool:
        """Delete a daemon whose claim has no record. Returns whether it is to be tried again."""
        uid = daemon_files.claim_of(directory.path.name)
        if self._is_kept(uid):
            return await self._is_of_earlier_attempt(directory)
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        async with daemons.locks.hold((uid,), holder="collector", deadline=deadline):
            if self._is_kept(uid):  # it was prepared again meanwhile
                return False
            await self._files.run(directory.forbid)
            if await self._files.run(lambda: directory.is_locked):
                return True
            await self._delete(deployment.name(directory.path.name), deadline)
            is_gone = await self._removals.run(directory.remove)
        if not is_gone:
            self._report_large(directory)
            return True
        LOG.info("MPS control daemon deleted", daemon=directory.path.name)
        return False

    def _report_large(self, directory: DaemonDirectory) -> None:
        if directory.path.name not in self._large:
            LOG.info(
                "The directory of an MPS control daemon holds so much that removing it takes long",
                directory=str(directory.path),
            )
        self._large.add(directory.path.name)

    def _is_kept(self, uid: ClaimUID) -> bool:
        return uid in self._prepared_claims or uid in self._prepared_claims.unreadable

    async def _is_of_earlier_attempt(self, directory: DaemonDirectory) -> bool:
        """Whether the directory of a prepared claim is forbidden: its record goes in a moment."""
        return await self._files.run(lambda: directory.is_forbidden)

    async def _delete_others(self) -> None:
        """Delete the Deployments of this node whose claims have no record, and no directory."""
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        params = {"labelSelector": f"{deployment.NODE_LABEL}={self._node}"}
        for obj in (await self._api.get(self._path, deadline, params))["items"]:
            name = obj["metadata"]["name"]
            daemon_id = name.removeprefix(deployment.NAME_PREFIX)
            if not self._is_kept(daemon_files.claim_of(daemon_id)):
                await self._delete(name, deadline)
                LOG.info("MPS control daemon deleted", daemon=daemon_id)

    async def _delete(self, name: str, deadline: float) -> None:
        with suppress(NotFound):
            await self._api.delete(f"{self._path}/{name}", deadline)
