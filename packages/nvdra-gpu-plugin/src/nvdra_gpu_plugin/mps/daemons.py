# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the MPS control daemons of claims.

To start one needs the API server, which is given a Deployment. To stop one does not: a file forbids
the daemon, and the kernel's lock says when it has ended. Callers hold the locks of the GPUs to
start and to stop, and none while they wait for a daemon. `deployment_collector` deletes what was
stopped. Source: docs/reference/gpu-prepare.md, "MPS".
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict, Invalid, NotFound
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.locks import KeyedLocks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.resourceslices import pool_diff
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.mps import daemon_files, daemon_plan, daemon_pods, deployment, multi_user
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_gpu_plugin.mps.deployment import DaemonSettings

LOG = logs.logger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_FILES_TIMEOUT_S: Final = 10.0
_CALL_TIMEOUT_S: Final = 10.0
_END_TIMEOUT_S: Final = 15.0
"""How long an unprepare waits for a daemon, which takes 10 s to end one that does not want to."""
_END_AGAIN_TIMEOUT_S: Final = 1.0
"""How long a later attempt waits. It holds the locks of GPUs of which others may have parts."""
_INTERVAL_S: Final = 0.25
"""Between two looks at the daemon's files, which cost three system calls. The kubelet's probe says
the same a second or two later, by way of the API server."""
_REASON_TIMEOUT_S: Final = 3.0

_REMEDY: Final = (
    "wait, if the daemon's image is still being pulled; otherwise look at the pod and its log in "
    "the driver's namespace"
)


def not_ready_yet(claim: ClaimRef) -> RetryableError:
    """`MpsNotReady`: daemons of a claim have been started and do not run yet."""
    return RetryableError(
        Reason.MPS_NOT_READY,
        f"the MPS control daemon of claim {claim} is not ready yet",
        _REMEDY,
        claim=str(claim),
    )


class MpsDaemons:
    """The daemons of one node.

    Attributes:
        locks: A lock per claim, for who starts a claim's daemons or deletes what is left of them.
        stopped: Set when a daemon was stopped, so that its Deployment can be deleted.
    """

    def __init__(
        self,
        api: Client,
        settings: DaemonSettings,
        plugin_dir: Path,
        host: Host,
        gpus: NodeGpus,
        files: Worker,
        unmounts: Worker,
        telemetry: Telemetry,
    ) -> None:
        """Create it without any call.

        Args:
            api: The API server.
            settings: What all daemons have in common.
            plugin_dir: The plugin's directory: the same here and on the node.
            host: Where the node's memory is described.
            gpus: The node's GPUs, which share its memory.
            files: The thread for files.
            unmounts: The thread for what may take long: freeing memory, running a program.
            telemetry: Of the node.
        """
        self.locks: KeyedLocks[ClaimUID] = KeyedLocks()
        self.stopped = asyncio.Event()
        self._api = api
        self._settings = settings
        self._plugin_dir = plugin_dir
        self._host = host
        self._gpus = gpus
        self._files = files
        self._unmounts = unmounts
        self._telemetry = telemetry
        self._ends_by: dict[Path, float] = {}

    async def check_driver(self, record: GpuClaimRecord, step: ShareByMps) -> None:
        """Check that the node's driver can run a claim's daemon.

        Raises:
            PermanentError: `InvalidConfig`: it lets one user at a time use a GPU.
            RetryableError: `MpsNotReady`: that cannot be found out in time.
        """
        if not step.is_multi_user:
            return
        if await self._run_on(self._unmounts, record.ref, multi_user.is_possible, self._host):
            return
        snapshot = self._gpus.snapshot
        versions = {gpu.driver_version for gpu in snapshot.inventory.gpus} if snapshot else set()
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"claim {record.ref}, mpsConfig: multiUser needs a newer driver: {multi_user.PROGRAM} "
            f"of NVIDIA's driver {', '.join(sorted(versions))} has no option for several users",
            "remove multiUser and give all containers of the claim the same runAsUser, or select "
            "GPUs of nodes with a newer driver by the attribute driverVersion, and create a new "
            "claim",
            claim=str(record.ref),
        )

    async def start(self, record: GpuClaimRecord, step: ShareByMps) -> ShareByMps:
        """Start a daemon. The claim's other changes are made, so that all UUIDs are known.

        Returns:
            The step with the daemon's directory.

        Raises:
            PermanentError: `InvalidConfig`.
            RetryableError: `MpsNotReady`, `ApiUnavailable`: it cannot be started.
        """
        located = self._located(record, step)
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        async with self.locks.hold((record.uid,), holder=str(record.ref), deadline=deadline):
            await self._start(record, located)
        return located

    async def is_ready(self, claim: ClaimRef, step: ShareByMps) -> bool:
        """Whether a daemon runs and has its settings.

        Raises:
            RetryableError: `MpsNotReady`: files cannot be read.
        """
        directory = DaemonDirectory(Path(step.directory))
        return bool(step.directory) and await self._run(claim, directory.is_ready, step.run)

    async def wait_ready(self, record: GpuClaimRecord, deadline: float) -> None:
        """Wait until a claim's daemons are ready.

        The last seconds are for what their pods say: the caller's deadline ends that, too.

        Raises:
            RetryableError: `MpsNotReady`: they are not by the deadline; it says what their pods
                say.
        """
        now = asyncio.get_running_loop().time()
        reserve_s = min(_REASON_TIMEOUT_S, (deadline - now) / 2)
        with self._telemetry.step("start mps"):
            try:
                async with asyncio.timeout_at(deadline - reserve_s):
                    while not await self._all_ready(record):  # noqa: ASYNC110 - files of others
                        await asyncio.sleep(_INTERVAL_S)
            except TimeoutError:
                pass
            else:
                return
        raise await self._not_ready(record)

    async def stop(self, record: GpuClaimRecord) -> None:
        """Stop a claim's daemons, whatever has been done of starting them. No request is sent.

        Raises:
            RetryableError: `DeviceInUse`: one has not ended yet; `MpsNotReady`: files cannot be
                changed.
        """
        directories = await self._run(
            record.ref, daemon_files.of_claim, self._plugin_dir, record.uid
        )
        for directory in directories:
            await self._run(record.ref, directory.forbid)
        with self._telemetry.step("stop mps"):
            for directory in directories:
                await self._wait_ended(record, directory)
                await self._run_on(self._unmounts, record.ref, directory.unmount)
                self._ends_by.pop(directory.path, None)
        self.stopped.set()

    async def _wait_ended(self, record: GpuClaimRecord, directory: DaemonDirectory) -> None:
        now = asyncio.get_running_loop().time()
        ends_by = self._ends_by.setdefault(directory.path, now + _END_TIMEOUT_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_by, now + _END_AGAIN_TIMEOUT_S)):
                while await self._run(  # noqa: ASYNC110 - the kernel does not notify
                    record.ref, _is_locked, directory
                ):
                    await asyncio.sleep(_INTERVAL_S)
                return
        raise RetryableError(
            Reason.DEVICE_IN_USE,
            f"the MPS control daemon of claim {record.ref} on {record.daemons[0].device} was told "
            f"to end, and a process of it still holds {directory.path / mps_layout.LOCK}",
            f"look at pod {deployment.name(directory.path.name)}-… in the driver's namespace; if "
            "its node or its container runtime does not respond, end the processes on the node",
            claim=str(record.ref),
            device=record.daemons[0].device,
        )

    def _located(self, record: GpuClaimRecord, step: ShareByMps) -> ShareByMps:
        daemon_id = daemon_plan.daemon_id(record.uid, record.uuids_of(step))
        directory = self._plugin_dir / mps_layout.FOLDER / daemon_id
        return step.model_copy(update={"directory": str(directory)})

    async def _start(self, record: GpuClaimRecord, step: ShareByMps) -> None:
        uuids = record.uuids_of(step)
        limits = daemon_plan.memory_limits(step, record.ref, uuids)
        directory = DaemonDirectory(Path(step.directory))
        self._ends_by.pop(directory.path, None)
        await self._run(
            record.ref,
            directory.allow,
            step.run,
            step.model_dump_json(),
            self._shm_kib(record, step),
        )
        if not await self._run(record.ref, directory.is_ready, step.run):
            await self._create(record, deployment.manifest(step, uuids, limits, self._settings))

    def _shm_kib(self, record: GpuClaimRecord, step: ShareByMps) -> int:
        is_mig = any(
            device.kind == "mig" for device in record.devices if device.device in step.devices
        )
        memory_kib = daemon_files.memory_kib(self._host.proc)
        return daemon_plan.shm_kib(memory_kib, self._gpus.count, len(step.devices), is_mig=is_mig)

    async def _create(self, record: GpuClaimRecord, wanted: JsonObject) -> None:
        """Create a Deployment, unless it exists. One of an earlier run is replaced."""
        path = deployment.PATH.format(namespace=self._settings.namespace)
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        wanted = pool_diff.with_node_owner(
            wanted, self._settings.node, await self._node_uid(deadline)
        )
        try:
            await self._create_or_replace(path, wanted, deadline)
        except (Invalid, NotFound) as error:
            raise RetryableError(
                Reason.MPS_NOT_READY,
                f"the Deployment of the MPS control daemon of claim {record.ref} is not accepted: "
                f"{error.message}",
                "check that the driver's namespace exists and that no policy forbids privileged "
                "pods in it",
                claim=str(record.ref),
            ) from error

    async def _node_uid(self, deadline: float) -> str:
        """Read for each Deployment, because a Node that was created again has another UID."""
        node = await self._api.get(f"/api/v1/nodes/{self._settings.node}", deadline)
        return str(node["metadata"]["uid"])

    async def _create_or_replace(self, path: str, wanted: JsonObject, deadline: float) -> None:
        for _ in range(2):
            with suppress(Conflict):
                await self._api.create(path, wanted, deadline)
                return
            name, run = _name_and_run(wanted)
            with suppress(NotFound):
                found = await self._api.get(f"{path}/{name}", deadline)
                if found["metadata"].get("deletionTimestamp") is None and (
                    _name_and_run(found)[1] == run
                ):
                    return
                await self._api.delete(f"{path}/{name}", deadline, uid=found["metadata"]["uid"])
        # It is still being deleted. The next attempt finds out.

    async def _all_ready(self, record: GpuClaimRecord) -> bool:
        for step in record.daemons:
            if not await self.is_ready(record.ref, step):
                return False
        return True

    async def _not_ready(self, record: GpuClaimRecord) -> RetryableError:
        """The failure, with what the pods of the daemons say."""
        said = []
        for step in record.daemons:
            if not await self.is_ready(record.ref, step):
                name = deployment.name(Path(step.directory).name)
                said.append(f"{', '.join(step.devices)}: {await self._problem(name)}")
        return RetryableError(
            Reason.MPS_NOT_READY,
            f"the MPS control daemon of claim {record.ref} is not ready: {'; '.join(said)}",
            _REMEDY,
            claim=str(record.ref),
        )

    async def _problem(self, name: str) -> str:
        """What the pods of a Deployment say."""
        path = deployment.PODS_PATH.format(namespace=self._settings.namespace)
        deadline = asyncio.get_running_loop().time() + _REASON_TIMEOUT_S
        try:
            found = await self._api.get(path, deadline, {"labelSelector": f"app={name}"})
        except DriverError as error:
            return f"its pods cannot be listed: {error.message}"
        return await self._refusal(name, deadline) or daemon_pods.problem(found["items"])

    async def _refusal(self, name: str, deadline: float) -> str:
        """Why the API server takes no pod of a Deployment; empty if it does."""
        path = deployment.PATH.format(namespace=self._settings.namespace)
        try:
            return daemon_pods.refusal(await self._api.get(f"{path}/{name}", deadline))
        except DriverError:
            return ""  # what its pods say is known

    async def _run(self, claim: ClaimRef, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call it on the thread for files.

        Raises:
            RetryableError: `MpsNotReady`.
        """
        return await self._run_on(self._files, claim, function, *arguments)

    async def _run_on(
        self, worker: Worker, claim: ClaimRef, function: Callable[[*Ts], T], *arguments: *Ts
    ) -> T:
        deadline = asyncio.get_running_loop().time() + _FILES_TIMEOUT_S
        try:
            return await worker.run(function, *arguments, deadline=deadline)
        except (OSError, TimeoutError) as error:
            raise files_error(claim, error, self._plugin_dir) from error


def files_error(claim: ClaimRef, error: OSError | TimeoutError, plugin_dir: Path) -> RetryableError:
    """Why the files of a claim's daemon cannot be used. A timeout of asyncio has no text."""
    return RetryableError(
        Reason.MPS_NOT_READY,
        f"the files of the MPS control daemon of claim {claim} cannot be read or changed: "
        f"{str(error) or 'the disk does not respond'}",
        f"check the disk of {plugin_dir}, and that the plugin may mount a tmpfs there",
        claim=str(claim),
    )


def _is_locked(directory: DaemonDirectory) -> bool:
    return directory.is_locked


def _name_and_run(obj: JsonObject) -> tuple[str, str]:
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    return metadata["name"], annotations.get(deployment.RUN_ANNOTATION, "")
