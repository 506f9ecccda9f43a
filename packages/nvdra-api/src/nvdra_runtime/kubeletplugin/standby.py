# SPDX-License-Identifier: Apache-2.0
"""What an instance does while another one of the same driver is active on the node.

It warms up, serves probes and status, and waits until the instance lock is free. If the kubelet can
register several instances, it is registered, too, and passes its calls on to the active instance.
Source: docs/design.md, "Rollouts do not interrupt"; docs/reference/kubelet-plugin.md, "Rolling
updates".
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from nvdra_api.errors import DriverError

from nvdra_runtime.http import probes
from nvdra_runtime.http.probes import Check, PassingRemark
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kubeletplugin import (
    kubelet_version,
    peer_health,
    readiness_checks,
    registration,
    server,
    status_report,
)
from nvdra_runtime.kubeletplugin.call_router import CallRouter
from nvdra_runtime.kubeletplugin.health_service import HealthService
from nvdra_runtime.kubeletplugin.http_pages import HttpPages
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.kubeletplugin.server import KubeletStatus
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.kubeletplugin.sibling_sockets import SiblingSockets
from nvdra_runtime.kubeletplugin.status_report import Document, Instance
from nvdra_runtime.node import instance_lock, record_database
from nvdra_runtime.node.instance_lock import InstanceLock
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.task_failures import TaskFailures
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics

LOG = logs.logger(__name__)

_POLL_S: Final = 0.05
"""Between two attempts to acquire the lock; the kernel tells nobody that a `flock` is free. One
takes 20 µs."""

_REPLACED_LOCK_PAUSE_S: Final = 15.0
"""How long a lock file that was removed or replaced is left to the active instance, which acquires
the new one within `file_restorer`'s interval of 5 s."""

_API_RETRY_S: Final = 1.0
_API_TIMEOUT_S: Final = 5.0

_REMINDER_S: Final = 600.0
"""Between two warnings that another instance is still active. A rollout takes seconds; two
DaemonSets of one driver would look like this."""

_STARTING_S: Final = 60.0
"""How long an instance that takes over may take before it is no longer ready."""


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


class _LockFile(NamedTuple):
    """One look at the lock.

    Attributes:
        identity: Device and inode of the file; None if it is missing.
        is_acquired: Whether this instance holds it now.
        holder: Who holds it otherwise.
        is_served: Whether the DRA socket of the holder exists.
    """

    identity: tuple[int, int] | None
    is_acquired: bool
    holder: Mapping[str, str]
    is_served: bool


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
        instance: Instance,
        api: Client,
        pages: HttpPages,
        metrics: PluginMetrics,
        warm_up: WarmUp | None,
        tasks: BackgroundTasks,
        sockets: AsyncExitStack,
        clock: Clock,
        task_failures: TaskFailures,
        health: HealthService | None = None,
    ) -> None:
        """Create it without standing by.

        Args:
            settings: The plugin's flags.
            instance: This instance, for its status.
            api: The client of the API server.
            pages: Probes, metrics and status.
            metrics: The process's metrics.
            warm_up: What the driver does meanwhile; None for nothing.
            tasks: The tasks of the process, which outlive the standby.
            sockets: Closes this instance's sockets when the process ends.
            clock: For the duration of the phases.
            task_failures: What tasks have failed of.
            health: Streams the health of devices; None if the driver does not report it.
        """
        self.router = CallRouter(self._active_socket)
        self.health = health
        self.kubelet: KubeletStatus | None = None
        self.sockets = sockets
        self.siblings = SiblingSockets(
            settings.driver, settings.plugin_dir, settings.kubelet_registrar_directory_path
        )
        self._settings = settings
        self._instance = instance
        self._api = api
        self._pages = pages
        self._metrics = metrics
        self._warm_up = warm_up
        self._warming: asyncio.Task[None] | None = None
        self._tasks = tasks
        self._clock = clock
        self._task_failures = task_failures
        self._began = clock.monotonic()
        self._holder: Mapping[str, str] = {}
        self._paths: SocketPaths | None = None
        self._is_version_known = False
        self._version_problem = "it has not been read yet"
        self._has_slices = False
        self._state_problem = "it has not been read yet"
        self._lock_problem = ""
        self._acquired_at: float | None = None
        self._unserved_since: float | None = None

    async def wait(self, lock: InstanceLock, stop: asyncio.Event) -> bool:
        """Stand by until the lock is acquired. Returns False if the process is stopped before.

        Raises:
            ExceptionGroup: A port or a socket of this instance cannot be used.
        """
        self._began, self._acquired_at = self._clock.monotonic(), None
        self._holder = lock.read_holder()
        self._metrics.set_active(False)
        LOG.info("Standing by for another instance of this driver", holder=self._holder_text)
        if self._warm_up is not None and self._warming is None:
            self._warming = self._tasks.start("warm-up", self._warm_up.run)
        await self._pages.show(self._checks(), self._status)
        async with (
            Worker("standby") as files,
            background_tasks.running(
                kubelet_version=self._read_kubelet_version,
                slices=self._see_slices,
                state_file=partial(self._read_state_file, files),
                reminder=self._remind,
                dead_sockets=self.siblings.run,
                peer_health=partial(peer_health.report, self.health, self._active_socket),
            ),
        ):
            return await self._wait_acquired(lock, files, stop)

    def end_warm_up(self) -> None:
        """End the warm-up: this instance is active, or the process ends."""
        if self._warming is not None:
            self._warming.cancel()

    async def log_takeover(self, kubelet: KubeletStatus) -> None:
        """Log how long the node was without an active, registered instance."""
        if self._acquired_at is None:
            return
        await kubelet.wait_registered()
        now = self._clock.monotonic()
        since = self._acquired_at if self._unserved_since is None else self._unserved_since
        LOG.info(
            "This instance has taken over",
            former=self._holder_text,
            was_registered=self.kubelet is not None,
            takeover_s=round(now - self._acquired_at, 3),
            gap_s=0.0 if self.kubelet is not None else round(now - since, 3),
        )

    async def _wait_acquired(self, lock: InstanceLock, files: Worker, stop: asyncio.Event) -> bool:
        identity, free_at = await files.run(_identity, lock.path), 0.0
        while not stop.is_set():
            if self._paths is not None and self.kubelet is None:
                self.kubelet = await self.register(self._paths)
                lock.holder[instance_lock.SOCKET] = self._paths.dra
            is_due = self._clock.monotonic() >= free_at
            try:
                found = await files.run(
                    _look, lock, self._settings.plugin_dir, identity if is_due else None
                )
            except OSError as error:
                self._lock_problem = f"the lock cannot be read: {error}"
                await timeouts.wait_for_event(stop, _API_RETRY_S)
                continue
            self._lock_problem = ""
            if found.identity != identity:
                free_at = self._clock.monotonic() + _REPLACED_LOCK_PAUSE_S
                identity = found.identity
            self._note(found)
            if found.is_acquired:
                LOG.info("The lock is free: taking over", former=self._holder_text)
                return True
            await timeouts.wait_for_event(stop, _POLL_S)
        return False

    def _note(self, found: _LockFile) -> None:
        now = self._clock.monotonic()
        if found.is_acquired:
            self._acquired_at = now
        elif found.holder:
            self._holder = found.holder
        if found.is_served:
            self._unserved_since = None
        elif self._unserved_since is None:
            self._unserved_since = now

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
            "instance": self._instance_check,
            **({} if self._warm_up is None else self._warm_up.checks),
            "slices": self._slices_check,
            "state": lambda: self._state_problem or None,
            "kubelet": self._kubelet_check,
            "tasks": probes.tasks_check(self._task_failures),
        }

    @property
    def _holder_text(self) -> str:
        return instance_lock.describe_holder(self._holder)

    def _active_socket(self) -> Path | None:
        """The DRA socket of the active instance, as far as it is known."""
        default = self._settings.plugin_dir / registration.DRA_SOCKET
        named = Path(self._holder.get(instance_lock.SOCKET) or default)
        return None if named in self.siblings.own else named

    def _instance_check(self) -> str | None:
        if self._lock_problem:
            return self._lock_problem
        if self._acquired_at is None:
            return PassingRemark(
                f"standing by for another instance of this driver ({self._holder_text}); it takes "
                "over when that one ends"
            )
        text = "taking over: its parts are being started"
        if self._clock.monotonic() - self._acquired_at < _STARTING_S:
            return PassingRemark(text)
        return text

    def _slices_check(self) -> str | None:
        if self._has_slices or not self._can_register:
            return None
        return "the API server has no slice of this node and driver yet"

    def _kubelet_check(self) -> str | None:
        if self.kubelet is not None:
            return readiness_checks.registration_check(self.kubelet)()
        if self._paths is not None:
            return "the sockets are being created"
        if self._is_version_known:
            return PassingRemark(
                "not registered before it takes over: kubelets before 1.33 register one instance"
            )
        # However long: a release that does not reach the API server must not replace one that does.
        return f"the kubelet's version is not known: {self._version_problem}"

    @property
    def _can_register(self) -> bool:
        return self._paths is not None

    async def _read_kubelet_version(self) -> None:
        """Read the Node's kubelet version, and choose the sockets that follow from it."""
        while not self._is_version_known:
            try:
                node = await self._api.get(f"/api/v1/nodes/{self._instance.node}", self._deadline())
            except DriverError as error:
                self._version_problem = str(error)
                await asyncio.sleep(_API_RETRY_S)
                continue
            info = (node.get("status") or {}).get("nodeInfo") or {}
            version = str(info.get("kubeletVersion") or "")
            if kubelet_version.registers_several_instances(version):
                self._paths = self._instance_paths()
            LOG.info("Read the kubelet's version", version=version, registers=self._can_register)
            self._is_version_known = True

    def _instance_paths(self) -> SocketPaths | None:
        settings = self._settings
        return registration.instance_socket_paths(
            settings.driver,
            str(settings.plugin_dir),
            str(settings.kubelet_registrar_directory_path),
            settings.pod_uid,
        )

    async def _see_slices(self) -> None:
        """Wait until the API server has slices of this node, which the active instance writes."""
        fields = f"spec.nodeName={self._instance.node},spec.driver={self._settings.driver}"
        while not self._has_slices:
            try:
                deadline = self._deadline()
                path = apiversions.slices_path(await self._api.dra_api_version(deadline))
                found = await self._api.get(path, deadline, {"fieldSelector": fields})
                self._has_slices = bool(found.get("items"))
            except DriverError as error:
                LOG.v(4, "The slices cannot be read", error=str(error))
            if not self._has_slices:
                await asyncio.sleep(_API_RETRY_S)

    async def _read_state_file(self, files: Worker) -> None:
        """Check that this release can read the state file."""
        path = self._settings.plugin_dir / record_database.FILE_NAME
        while self._state_problem:
            try:
                await files.run(record_database.check_readable, path)
            except DriverError as error:
                self._state_problem = str(error)
                await asyncio.sleep(_API_RETRY_S)
            else:
                self._state_problem = ""

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(_REMINDER_S)
            LOG.warning(
                "Another instance of this driver is still active on this node; there must be one "
                "DaemonSet for each driver",
                holder=self._holder_text,
                minutes=round((self._clock.monotonic() - self._began) / 60),
            )

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + _API_TIMEOUT_S

    def _status(self) -> Document:
        return status_report.waiting_document(
            self._instance, self._checks(), self._clock.now(), self._holder_text
        )


def _look(lock: InstanceLock, plugin_dir: Path, acquire_if: tuple[int, int] | None) -> _LockFile:
    """Look at the lock, and acquire it if it is free and the file is the one that is named."""
    identity = _identity(lock.path)
    is_acquired = identity is not None and identity == acquire_if and lock.try_acquire()
    holder = lock.read_holder()
    socket = Path(holder.get(instance_lock.SOCKET) or plugin_dir / registration.DRA_SOCKET)
    return _LockFile(identity, is_acquired, holder, socket.exists())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
