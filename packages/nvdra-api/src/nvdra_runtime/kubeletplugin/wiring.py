# SPDX-License-Identifier: Apache-2.0
"""Starts what every plugin serves: the kubelet's sockets, the probes, metrics and the debug port.

It is started last and stopped first, so that no call is answered before the driver is ready for it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic

from nvdra_api.ids import ClaimUID

from nvdra_runtime.claims import root_spans
from nvdra_runtime.claims.claim_reader import ClaimReader
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.failures import FailureRecorder
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.claims.records import RecordT
from nvdra_runtime.claims.service import ClaimService, Preparer
from nvdra_runtime.claims.stale_claims import StaleClaimCleanup
from nvdra_runtime.http import probes
from nvdra_runtime.http.debug_endpoint import Action
from nvdra_runtime.http.probes import Check
from nvdra_runtime.kubeletplugin import cdi_hook, readiness_checks, registration
from nvdra_runtime.kubeletplugin.device_health import HealthSource
from nvdra_runtime.kubeletplugin.file_restorer import CheckErrors, FileCheck, FileRestorer
from nvdra_runtime.kubeletplugin.grpc_service import ClaimHandler
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.kubeletplugin.server import KubeletStatus
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.kubeletplugin.standby import Standby
from nvdra_runtime.kubeletplugin.status_report import DescribeDevices, StatusReport
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.single_flight import SingleFlight
from nvdra_runtime.resourceslices.publisher import Publisher
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_WARM_UP_CHECK_S: Final = 0.5
"""Between two looks at whether the driver works without the warm-up."""


@dataclass(frozen=True, slots=True)
class Driver(Generic[RecordT]):
    """The parts of one driver.

    Attributes:
        prepared_claims: The claims that are prepared on this node.
        recovery: Recovers records that were lost.
        wait_queue: The prepares that wait.
        claim_reader: Reads claims from the API server.
        preparer: Prepares and unprepares claims.
        publisher: Publishes the node's ResourceSlices.
        describe_devices: Describes the devices for the command `status`.
        readiness_checks: What this driver needs to be ready, by name; shown first.
        restore_files: Restores files of this driver that were removed.
        restore_errors: The exceptions that `restore_files` raises if it cannot restore a file.
        debug_actions: What commands in the plugin's pod can ask for, by the path below `/debug`.
        health: The health of the devices, for the kubelet; only if the program reports it.
    """

    prepared_claims: PreparedClaims[RecordT]
    recovery: RecordRecovery[RecordT]
    wait_queue: DeviceWaitQueue
    claim_reader: ClaimReader
    preparer: Preparer[RecordT]
    publisher: Publisher
    describe_devices: DescribeDevices
    readiness_checks: Mapping[str, Check]
    restore_files: FileCheck
    restore_errors: CheckErrors
    debug_actions: Mapping[str, Action] = field(default_factory=dict)
    health: HealthSource | None = None


@asynccontextmanager
async def serve(context: PluginContext, driver: Driver[RecordT]) -> AsyncIterator[None]:
    """Serve the node until the block is left.

    Prepared claims stay prepared, and pods keep running.
    """
    prepared_claims, standby = driver.prepared_claims, context.standby
    failures = FailureRecorder(context.node, context.events, context.telemetry, context.clock)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        service = await enter(_claim_service(context, driver, failures))
        file_checks = await enter(_files_restored(context, driver))
        kubelet = await _serve_kubelet(standby, context.settings, service, driver.health)
        context.metrics.set_active(True)
        checks: Mapping[str, Check] = {
            **driver.readiness_checks,
            "slices": readiness_checks.slices_check(driver.publisher),
            "state": readiness_checks.state_check(context.store, prepared_claims),
            "files": file_checks,
            "kubelet": readiness_checks.registration_check(kubelet),
            "tasks": probes.tasks_check(context.telemetry.task_failures),
        }
        status = StatusReport(
            context.driver,
            context.program.version,
            context.node,
            driver.describe_devices,
            prepared_claims,
            failures,
            checks,
            context.clock,
        )
        await context.pages.show(checks, status.document, driver.debug_actions)
        await enter(
            background_tasks.running(
                dead_sockets=standby.siblings.run,
                takeover=partial(standby.log_takeover, kubelet),
                end_of_warm_up=partial(_end_warm_up, standby, driver.readiness_checks),
            )
        )
        try:
            yield
        finally:
            LOG.info(
                "Stopping; prepared claims stay prepared, and their pods keep running",
                claims=_describe_claims(prepared_claims),
            )
            context.metrics.set_active(False)
            await _leave_calls(standby, driver.wait_queue)


@asynccontextmanager
async def _claim_service(
    context: PluginContext, driver: Driver[RecordT], failures: FailureRecorder
) -> AsyncIterator[ClaimHandler]:
    """What answers the kubelet, and unprepares claims that it has forgotten."""
    node, telemetry = context.node, context.telemetry
    async with (
        SingleFlight[ClaimUID]() as operations,
        root_spans.running(node, context.api, context.store, telemetry) as roots,
    ):
        service = ClaimService(
            driver.claim_reader,
            driver.preparer,
            driver.recovery,
            driver.wait_queue,
            operations,
            roots,
            failures,
            telemetry,
        )
        stale_claims = StaleClaimCleanup(
            context.driver,
            context.api,
            driver.prepared_claims,
            driver.wait_queue,
            context.checkpoint,
            service.unprepare_stale,
        )
        async with background_tasks.running(
            record_recovery=driver.recovery.run,
            stale_claims=stale_claims.run_periodically,
            blocking_claims=stale_claims.check_blocking_claims,
        ):
            yield service


@asynccontextmanager
async def _files_restored(context: PluginContext, driver: Driver[RecordT]) -> AsyncIterator[Check]:
    """Keep the lock, the hook and the driver's files where they belong. Yields their check."""
    settings = context.settings
    hook = partial(cdi_hook.restore, settings.nvidia_cdi_hook_path, settings.plugin_dir)
    lock = FileRestorer(context.files, (context.state_dir.lock.reacquire_if_replaced,), (OSError,))
    files = FileRestorer(context.files, (hook, driver.restore_files), driver.restore_errors)
    async with background_tasks.running(file_restorer=files.run, instance_lock=lock.run):
        yield lambda: lock.problem or files.problem or None


async def _serve_kubelet(
    standby: Standby,
    settings: PluginSettings,
    handler: ClaimHandler,
    health: HealthSource | None,
) -> KubeletStatus:
    """Serve on the sockets that are registered already, or on those of a single instance."""
    standby.router.answer_with(handler)
    if standby.health is not None and health is not None:
        standby.health.report(health)
    if standby.kubelet is not None:
        return standby.kubelet
    paths = registration.socket_paths(
        settings.driver, str(settings.plugin_dir), str(settings.kubelet_registrar_directory_path)
    )
    return await standby.register(paths)


async def _leave_calls(standby: Standby, wait_queue: DeviceWaitQueue) -> None:
    """Stop answering: leave calls to the successor, if there is one, or finish them.

    A successor answers as soon as it has the lock. So this instance then closes its sockets last,
    after it has released the lock, and passes on what it is still called for.
    """
    if standby.health is not None:
        standby.health.end()
    has_successor = await standby.siblings.newest_served() is not None
    if has_successor:
        standby.router.stop_answering(standby.siblings.newest)
    wait_queue.close()
    if not has_successor:
        await standby.sockets.aclose()


async def _end_warm_up(standby: Standby, checks: Mapping[str, Check]) -> None:
    """End the warm-up once the driver works without it."""
    while True:
        if not any(probes.is_failure(check()) for check in checks.values()):
            standby.end_warm_up()
            return
        await asyncio.sleep(_WARM_UP_CHECK_S)


def _describe_claims(prepared_claims: PreparedClaims[RecordT]) -> list[str]:
    """Each claim and the pods that use it."""
    return [f"{claim.ref} of {', '.join(claim.pod_names)}" for claim in prepared_claims.values()]
