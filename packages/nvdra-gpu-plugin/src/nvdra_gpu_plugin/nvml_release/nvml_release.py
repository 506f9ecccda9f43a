# SPDX-License-Identifier: Apache-2.0
"""Releases NVML when an administrator asks for it, and resumes.

While NVML is released nothing of the driver is open in this process, so that a GPU can be reset,
its MIG mode switched, and the driver unloaded or replaced. New prepares wait, unprepares go on, and
the published slices stay. Source: docs/design.md, "The node's owner comes first".
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from nvdra_api import names
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.http.probes import PassingRemark
from nvdra_runtime.kube.event_recorder import EventType, node_reference
from nvdra_runtime.kubeletplugin import nvml_release as node_release
from nvdra_runtime.kubeletplugin.nvml_release import Origin, ReleaseState
from nvdra_runtime.kubeletplugin.plugin_context import PluginContext
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.hardware import gpu_settings
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.nvml_release import gpu_use, release_state
from nvdra_gpu_plugin.nvml_release.node_annotation import NodeAnnotation
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate
from nvdra_gpu_plugin.nvml_release.release_state import ReleaseRequest

LOG = logs.logger(__name__)

_PREPARES_TIMEOUT_S: Final = 12.0
"""How long prepares that verify their GPUs are waited for. A GPU that does not answer has 10 s."""

_LOOK_AGAIN_S: Final = 30.0
"""How often the clock is looked at, because it may be set, and a refused annotation is tried."""

_ANSWER_S: Final = 0.5
"""After this time the process ends whose NVML hangs, so that the command gets its answer."""


_HANGS: Final = (
    "A call hangs in NVML, so that it cannot be closed: this process ends, and the next one starts "
    "with NVML released"
)


class NvmlRelease:
    """The release of NVML on one node."""

    def __init__(
        self,
        context: PluginContext,
        plugin_dir: Path,
        state: ReleaseState,
        monitor: DeviceMonitor,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        gate: PrepareGate,
        stop: asyncio.Event,
    ) -> None:
        """Create it without any request.

        Args:
            context: The shared parts of the plugin.
            plugin_dir: Where the state is kept for the next process.
            state: What an earlier process has left there. If it says that NVML is released,
                `monitor` has been started so.
            monitor: Holds the NVML session.
            prepared_claims: Says which GPUs are in use.
            gate: Every prepare passes it before it uses a GPU.
            stop: Set to end the process, if NVML hangs.
        """
        self._context = context
        self._plugin_dir = plugin_dir
        self._state = state
        self._monitor = monitor
        self._prepared_claims = prepared_claims
        self._gate = gate
        self._stop = stop
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._refusal = ""
        self._advice = ""
        self._blocking_claim: ClaimUID | None = None
        self._annotation = NodeAnnotation(
            context.node, context.api, self._woken.set, context.metrics.watch_restart
        )
        if state.release is not None:
            gate.close(self._released_error())

    @property
    def remark(self) -> PassingRemark | None:
        """What `/readyz` and the command `status` say while NVML is released."""
        return None if self._gate.is_open else PassingRemark(self._description)

    @property
    def refusal(self) -> PassingRemark | None:
        """What they say while an annotation of the Node is not carried out; it names no claim."""
        return PassingRemark(self._refusal) if self._refusal else None

    async def run(self) -> None:
        """Carry out the annotation, and resume when the time has passed. Run until cancelled."""
        self._report_metric()
        if self._state.release is not None:
            LOG.info("NVML stays released, as an earlier process has left it", **self._facts)
        async with self._annotation.running():
            while True:
                self._woken.clear()
                await self._apply()
                await self._wait_for_cause()

    async def release(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out the command `release`.

        Raises:
            ValueError: The document is not a request.
            DriverError: GPUs are in use.
        """
        request = ReleaseRequest.model_validate({**document, "origin": Origin.COMMAND})
        async with self._lock:
            is_closed = await self._release(request, self._state.annotation)
            self._woken.set()
        text = self._answer
        if not is_closed:
            text += f"; {_HANGS}"
        return {"text": text, "is_closed": is_closed}

    async def resume(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out the command `resume`."""
        del document
        async with self._lock:
            if self._state.release is None:
                return {"text": "NVML is not released", "is_closed": False}
            was_annotation = self._state.release.origin is Origin.ANNOTATION
            await self._resume("the command resume", self._state.annotation)
            self._woken.set()
        text = "NVML is in use again, and the GPUs have been inspected"
        if was_annotation:
            text += (
                f"; the Node still has the annotation {names.RELEASE_NVML_ANNOTATION}, which is "
                "heeded again when it changes"
            )
        return {"text": text, "is_closed": False}

    async def _apply(self) -> None:
        """Do what the clock and the annotation ask for."""
        async with self._lock:
            release = self._state.release
            if release is not None and release.is_over(self._now()):
                await self._resume("its time has passed", self._state.annotation)
            value = self._annotation.value
            if value == self._state.annotation:
                self._refusal, self._blocking_claim = "", None
            elif value is not None:
                await self._apply_annotation(value)

    async def _apply_annotation(self, value: str) -> None:
        """Carry out a value that has not been carried out yet."""
        try:
            request = release_state.parse_annotation(value)
        except ValueError as error:
            self._refuse(
                f"the annotation {names.RELEASE_NVML_ANNOTATION}={value!r} of the Node is not "
                f"valid: {error}; valid are true, a time such as 15m, and both with ,force",
            )
            return
        if request is not None:
            try:
                await self._release(request, value)
            except DriverError as error:
                self._refuse(error.event_text, error.operator_text)
            return
        self._refusal, self._blocking_claim = "", None
        release = self._state.release
        if release is not None and release.origin is Origin.ANNOTATION:
            await self._resume("the annotation was removed", value)
        else:
            await self._write(self._state.model_copy(update={"annotation": value}))

    async def _release(self, request: ReleaseRequest, annotation: str) -> bool:
        """Close NVML, or go on with a release that is in force.

        Returns:
            Whether nothing of the driver is open. If it is not, this process is about to end.

        Raises:
            DriverError: GPUs are in use, and the request is not forced.
        """
        before = self._state.release
        if before is None and not request.is_forced:
            self._blocking_claim = gpu_use.blocking_claim(self._prepared_claims)
            gpu_use.check_unused(self._prepared_claims)
        self._gate.close(self._released_error())
        try:
            if before is None:
                await self._check_settled(request)
                persistent = await gpu_settings.persistent(self._monitor.probes)
                self._advice = gpu_use.persistence_advice(persistent)
            release = release_state.begin(
                request, self._now(), None if before is None else before.since
            )
            await self._write(ReleaseState(release=release, annotation=annotation))
        except BaseException:
            if before is None:
                self._gate.open()
            raise
        self._gate.close(self._released_error())
        self._refusal, self._blocking_claim = "", None
        is_closed = await self._monitor.release()
        self._report_metric()
        self._report("Normal", "NvmlReleased", self._answer)
        in_use = gpu_use.descriptions(self._prepared_claims)
        LOG.info("Released NVML", **self._facts, in_use=in_use, advice=self._advice)
        if not is_closed:
            LOG.error(_HANGS)
            asyncio.get_running_loop().call_later(_ANSWER_S, self._stop.set)
        return is_closed

    async def _check_settled(self, request: ReleaseRequest) -> None:
        """Return only if no prepare is under way, and GPUs lose no settings.

        Raises:
            DriverError: It is otherwise, and the request is not forced.
        """
        is_empty = await self._gate.wait_empty(_PREPARES_TIMEOUT_S)
        if request.is_forced:
            return
        if not is_empty:
            raise RetryableError(
                Reason.DEVICE_IN_USE, "a claim is just being prepared", gpu_use.FORCE_REMEDY
            )
        gpu_use.check_unused(self._prepared_claims)
        gpu_use.check_settings(await gpu_settings.volatile(self._monitor.probes))

    async def _resume(self, cause: str, annotation: str) -> None:
        """Use NVML again. The GPUs are inspected before prepares go on."""
        await self._write(ReleaseState(annotation=annotation))
        await self._monitor.resume()
        self._gate.open()
        self._report_metric()
        LOG.info("NVML is in use again", cause=cause)
        self._report(
            "Normal", "NvmlResumed", f"the GPU plugin uses NVML again ({cause}); prepares go on"
        )

    async def _write(self, state: ReleaseState) -> None:
        """Keep the state for the next process, and from now on in this one."""
        self._state = state
        try:
            await self._context.files.run(node_release.write, self._plugin_dir, state)
        except OSError as error:
            LOG.warning(
                "The next process will not know whether NVML is released: the file cannot be "
                "written",
                error=str(error),
            )

    async def _wait_for_cause(self) -> None:
        """Wait until there may be something to do."""
        is_pending = self._state.release is not None or self._refusal
        async with background_tasks.running(blocking_claim=self._wake_when_unblocked):
            await timeouts.wait_for_event(self._woken, self._wait_s if is_pending else None)

    async def _wake_when_unblocked(self) -> None:
        """Try a refused annotation again when a claim that stood in its way has gone."""
        if self._blocking_claim is not None:
            await self._prepared_claims.wait_removed(self._blocking_claim)
            self._woken.set()

    @property
    def _wait_s(self) -> float:
        until = None if self._state.release is None else self._state.release.until
        if until is None:
            return _LOOK_AGAIN_S
        return max(0.0, min(_LOOK_AGAIN_S, (until - self._now()).total_seconds()))

    def _refuse(self, text: str, operator_text: str = "") -> None:
        """Tell once why the annotation is not carried out."""
        if text != self._refusal:
            self._refusal = text
            LOG.warning("NVML is not released", error=operator_text or text)
            self._report("Warning", "NvmlReleaseRefused", text)

    def _released_error(self) -> RetryableError:
        return node_release.error(self._state.release, self._context.node)

    @property
    def _description(self) -> str:
        release, is_released = self._state.release, self._monitor.state.is_released
        if release is None:
            what = "opened again" if is_released else "released, unless GPUs are in use"
            return f"NVML is being {what}: prepares wait"
        ends = node_release.how_it_ends(release, self._context.node)
        since = f"released since {node_release.rfc3339(release.since)}"
        what = since if is_released else "being released"
        return f"NVML is {what}{node_release.until_text(release)}: prepares wait; {ends}"

    @property
    def _answer(self) -> str:
        """The description, with what else the administrator has to do."""
        return "; ".join(filter(None, (self._description, self._advice)))

    @property
    def _facts(self) -> dict[str, str]:
        release = self._state.release
        if release is None:
            return {}
        since, until = release.since, release.until
        return {
            "origin": release.origin,
            "since": node_release.rfc3339(since),
            "until": "" if until is None else node_release.rfc3339(until),
        }

    def _report(self, type_: EventType, reason: str, text: str) -> None:
        self._context.events.emit((node_reference(self._context.node),), type_, reason, text)

    def _report_metric(self) -> None:
        self._context.metrics.set_nvml_released(self._state.release is not None)

    def _now(self) -> datetime:
        return self._context.clock.now()


def left_by_earlier_process(plugin_dir: Path, now: datetime) -> ReleaseState:
    """The state that a process starts with: a release whose time has passed is over."""
    state = node_release.read(plugin_dir)
    if state.release is not None and state.release.is_over(now):
        return ReleaseState(annotation=state.annotation)
    return state
