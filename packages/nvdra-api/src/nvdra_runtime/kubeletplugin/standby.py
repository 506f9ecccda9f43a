# SPDX-License-Identifier: Apache-2.0
"""What an instance does while another one of the same driver is active on the node.

It warms up, serves probes and status, and waits until the instance lock is free. If the kubelet can
register several instances, it is registered, too, and passes its calls on to the active instance.
Source: docs/design.md, "Rollouts do not interrupt"; docs/reference/kubelet-plugin.md, "Rolling
updates".
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from nvdra_api.errors import DriverError

from nvdra_runtime.http import probes
from nvdra_runtime.http.probes import Check
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kubeletplugin import (
    kubelet_version,
    peer_health,
    readiness_checks,
    registration,
    server,
    standby_state,
)
from nvdra_runtime.kubeletplugin.call_router import CallRouter
from nvdra_runtime.kubeletplugin.health_service import HealthService
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.kubeletplugin.server import KubeletStatus
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.kubeletplugin.sibling_sockets import SiblingSockets
from nvdra_runtime.kubeletplugin.standby_state import LockFile, StandbyState
from nvdra_runtime.node import instance_lock, record_database
from nvdra_runtime.node.instance_lock import InstanceLock
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

LOG = logs.logger(__name__)

_POLL_S: Final = 0.05
"""Between two attempts to acquire the lock; the kernel does not notify of a free `flock`. One
takes 20 µs."""

_API_RETRY_S: Final = 1.0
_API_TIMEOUT_S: Final = 5.0

_REMINDER_S: Final = 600.0
"""Between two warnings that another instance is still active. A rollout takes seconds; two
DaemonSets of one driver would look like this."""


class WarmUp(Protocol):
    """What a driver does while its instance stands by.

    It changes nothing on the node that the active instance uses.

    Attributes:
        checks: The driver's readiness checks, by name.
    """

    checks: Mapping[str, Check]

    async def run(self) -> None:
        """Run until cancelled: once this instance has taken over, or when it ends."""
        ...


class Standby:
    """The phase before an instance becomes active, if another one is.

    Attributes:
        router: Routes the calls on this instance's sockets.
        health: Streams the health of devices; None if the driver does not report it.
        kubelet: The sockets that are registered already; None if there are none yet.
        sockets: Closes the sockets when the process ends.
        siblings: The sockets of the other instances.
    """

    def __init__(
        self,
        settings: PluginSettings,
        api: Client,
        show: Callable[[Mapping[str, Check], Callable[[], str]], Awaitable[None]],
        telemetry: Telemetry[PluginMetrics],
        warm_up: WarmUp | None,
        tasks: BackgroundTasks,
        health: HealthService | None = None,
    ) -> None:
        """Create it without standing by.

        The readiness checks, and the holder of the lock, are shown with `show`. The warm-up is one
        of the `tasks`, which outlive the standby.
        """
        self.router = CallRouter(self._active_socket)
        self.health = health
        self.kubelet: KubeletStatus | None = None
        self.sockets = AsyncExitStack()
        self.siblings = SiblingSockets(
            settings.driver, settings.plugin_dir, settings.kubelet_registrar_directory_path
        )
        self._settings = settings
        self._api = api
        self._show = show
        self._telemetry = telemetry
        self._warm_up = warm_up
        self._tasks = tasks
        self._state = StandbyState()

    async def wait(self, lock: InstanceLock, stop: asyncio.Event) -> bool:
        """Stand by until the lock is acquired. Returns False if the process is stopped before.

        Raises:
            ExceptionGroup: A port or a socket of this instance cannot be used.
        """
        is_first, now = self._state.began is None, _now()
        self._state = replace(self._state, began=now, acquired_at=None, holder=lock.read_holder())
        self._telemetry.metrics.set_active(False)
        holder = self._state.holder_text
        LOG.info("Standing by for another instance of this driver", holder=holder)
        if self._warm_up is not None and is_first:
            self._tasks.start("warm-up", self._warm_up.run)
        await self._show(self._checks(), lambda: self._state.holder_text)
        async with (
            Worker("standby") as files,
            background_tasks.running(
                kubelet_version=self._read_kubelet_version,
                slices=self._see_slices,
                state_file=partial(self._read_state_file, files),
                reminder=partial(self._remind, now),
                dead_sockets=self.siblings.run,
                peer_health=partial(peer_health.report, self.health, self._active_socket),
            ),
        ):
            return await self._wait_acquired(lock, files, stop)

    def end_warm_up(self) -> None:
        """End the warm-up: this instance is active, or the process ends."""
        self._tasks.cancel()

    async def log_takeover(self, kubelet: KubeletStatus) -> None:
        """Log how long the node was without an active, registered instance."""
        if self._state.acquired_at is None:
            return
        await kubelet.wait_registered()
        now, was_registered = _now(), self.kubelet is not None
        unserved_since = self._state.unserved_since or self._state.acquired_at
        LOG.info(
            "This instance has taken over",
            former=self._state.holder_text,
            was_registered=was_registered,
            takeover_s=round(now - self._state.acquired_at, 3),
            gap_s=0.0 if was_registered else round(now - unserved_since, 3),
        )

    async def _wait_acquired(self, lock: InstanceLock, files: Worker, stop: asyncio.Event) -> bool:
        identity = await files.run(_identity, lock.path)
        self._state = replace(self._state, identity=identity, free_at=0.0)
        while not stop.is_set():
            if self._state.paths is not None and self.kubelet is None:
                self.kubelet = await self.register(self._state.paths)
                lock.holder[instance_lock.SOCKET] = self._state.paths.dra
            try:
                lockable = self._state.lockable(_now())
                found = await files.run(_look, lock, self._settings.plugin_dir, lockable)
            except OSError as error:
                problem = f"the lock cannot be read: {error}"
                self._state = replace(self._state, lock_problem=problem)
                await timeouts.wait_for_event(stop, _API_RETRY_S)
                continue
            self._state = standby_state.looked(self._state, found, _now())
            if found.is_acquired:
                LOG.info("The lock is free: taking over", former=self._state.holder_text)
                return True
            await timeouts.wait_for_event(stop, _POLL_S)
        return False

    async def register(self, paths: SocketPaths) -> KubeletStatus:
        """Serve the kubelet on these sockets until the process ends."""
        self.siblings.set_own(paths)
        serving = server.serve_on(
            self._settings.driver,
            paths,
            (self.router, *(() if self.health is None else self.health.handlers())),
            reports_health=self.health is not None,
        )
        return await self.sockets.enter_async_context(serving)

    def _checks(self) -> Mapping[str, Check]:
        return {
            "instance": lambda: standby_state.instance_problem(self._state, _now()),
            **({} if self._warm_up is None else self._warm_up.checks),
            "slices": lambda: standby_state.slices_problem(self._state),
            "state": lambda: self._state.state_problem or None,
            "kubelet": self._kubelet_check,
            "tasks": probes.tasks_check(self._telemetry.task_failures),
        }

    def _kubelet_check(self) -> str | None:
        if self.kubelet is not None:
            return readiness_checks.registration_check(self.kubelet)()
        return standby_state.kubelet_problem(self._state)

    def _active_socket(self) -> Path | None:
        """The DRA socket of the active instance, as far as it is known."""
        named = self._state.active_socket(self._settings.plugin_dir)
        return None if named in self.siblings.own else named

    async def _read_kubelet_version(self) -> None:
        """Read the Node's kubelet version, and choose the sockets that follow from it."""
        settings = self._settings
        while self._state.version_problem:
            try:
                path = f"/api/v1/nodes/{settings.node_name}"
                node = await self._api.get(path, _now() + _API_TIMEOUT_S)
            except DriverError as error:
                self._state = replace(self._state, version_problem=str(error))
                await asyncio.sleep(_API_RETRY_S)
                continue
            info = (node.get("status") or {}).get("nodeInfo") or {}
            version, paths = str(info.get("kubeletVersion") or ""), None
            if kubelet_version.registers_several_instances(version):
                paths = registration.instance_socket_paths(
                    settings.driver,
                    str(settings.plugin_dir),
                    str(settings.kubelet_registrar_directory_path),
                    settings.pod_uid,
                )
            LOG.info("Read the kubelet's version", version=version, registers=paths is not None)
            self._state = replace(self._state, version_problem="", paths=paths)

    async def _see_slices(self) -> None:
        """Wait until the API server has slices of this node, which the active instance writes."""
        settings = self._settings
        fields = f"spec.nodeName={settings.node_name},spec.driver={settings.driver}"
        while not self._state.has_slices:
            try:
                deadline = _now() + _API_TIMEOUT_S
                path = apiversions.slices_path(await self._api.dra_api_version(deadline))
                found = await self._api.get(path, deadline, {"fieldSelector": fields})
                self._state = replace(self._state, has_slices=bool(found.get("items")))
            except DriverError as error:
                LOG.v(4, "The slices cannot be read", error=str(error))
            if not self._state.has_slices:
                await asyncio.sleep(_API_RETRY_S)

    async def _read_state_file(self, files: Worker) -> None:
        """Check that this release can read the state file."""
        path = self._settings.plugin_dir / record_database.FILE_NAME
        while self._state.state_problem:
            try:
                await files.run(record_database.check_readable, path)
            except DriverError as error:
                self._state = replace(self._state, state_problem=str(error))
                await asyncio.sleep(_API_RETRY_S)
            else:
                self._state = replace(self._state, state_problem="")

    async def _remind(self, began: float) -> None:
        while True:
            await asyncio.sleep(_REMINDER_S)
            LOG.warning(
                "Another instance of this driver is still active on this node; there must be one "
                "DaemonSet for each driver",
                holder=self._state.holder_text,
                minutes=round((_now() - began) / 60),
            )


def _look(lock: InstanceLock, plugin_dir: Path, lockable: tuple[int, int] | None) -> LockFile:
    """Look at the lock, and acquire it if it is free and the file is the one that may be locked."""
    identity = _identity(lock.path)
    is_acquired = identity is not None and identity == lockable and lock.try_acquire()
    holder = lock.read_holder()
    socket = StandbyState(holder=holder).active_socket(plugin_dir)
    return LockFile(identity, is_acquired, holder, socket.exists())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _now() -> float:
    return asyncio.get_running_loop().time()
