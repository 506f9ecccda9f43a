# SPDX-License-Identifier: Apache-2.0
"""The plugin registration service: GetInfo and NotifyRegistrationStatus.

It has a server of its own, so that GetInfo is answered while claims are prepared. If the kubelet
rejects the registration, the socket is created again after a back-off, because kubelets up to 1.35
do not try a rejected socket a second time.
Source: docs/reference/kubelet-plugin.md, "Registration sequence"; docs/design.md, "Settled".
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from nvdra_runtime._generated.pluginregistration.v1 import api_pb2
from nvdra_runtime.kubeletplugin import registration, socket_server
from nvdra_runtime.kubeletplugin.socket_server import SocketServer
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]

LOG = logs.logger(__name__)

_REJECTED_BACKOFF = Backoff(first_s=1, ceiling_s=60)
_GRACE_S = 1.0
"""For GetInfo, which is answered from memory."""


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """What the kubelet last reported: registered, rejected with `error`, or nothing yet."""

    is_registered: bool = False
    error: str = ""


class Registrar:
    """Registers the driver with the kubelet.

    Attributes:
        state: What the kubelet last reported.
        registered: Set once the kubelet has registered the driver.
    """

    def __init__(self, info: registration.PluginInfo, path: Path) -> None:
        self._info = info
        self.directory = path.parent
        self._endpoint = SocketServer(
            path, (self._handlers(),), socket_server.skip_verification, 0o755
        )
        self._rejected = asyncio.Event()
        self._rejections = 0
        self.state = RegistrationStatus()
        self.registered = asyncio.Event()

    @property
    def problem(self) -> str:
        """Why the kubelet cannot connect; empty if it can."""
        return self._endpoint.problem

    @asynccontextmanager
    async def listening(self, check_interval_s: float) -> AsyncIterator[None]:
        """Serve on the registration socket while the block runs."""
        await self._endpoint.open()
        try:
            async with background_tasks.running(
                registration=self._retry_rejected_registration,
                registration_socket=partial(
                    socket_server.run_restore_loop, self._endpoint, check_interval_s, _GRACE_S
                ),
            ):
                yield
        finally:
            await self._endpoint.close(_GRACE_S)

    async def _retry_rejected_registration(self) -> None:
        """Create the socket again after a rejection, unless the kubelet has registered it since."""
        while True:
            await self._rejected.wait()
            self._rejected.clear()
            self._rejections += 1
            delay = _REJECTED_BACKOFF.delay(self._rejections, random.random())  # noqa: S311 - spreads load
            LOG.warning("Registering again after a delay", delay_s=round(delay, 1))
            await asyncio.sleep(delay)
            if not self.state.is_registered:
                await self._endpoint.close(_GRACE_S)
                with suppress(OSError):  # `problem` says so, and the next check tries again
                    await self._endpoint.open()

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            registration.REGISTRATION_SERVICE,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info,
                    request_deserializer=api_pb2.InfoRequest.FromString,
                    response_serializer=api_pb2.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify_registration_status,
                    request_deserializer=api_pb2.RegistrationStatus.FromString,
                    response_serializer=api_pb2.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    async def _get_info(
        self, request: api_pb2.InfoRequest, context: "Context"
    ) -> api_pb2.PluginInfo:
        return api_pb2.PluginInfo(
            type=registration.PLUGIN_TYPE,
            name=self._info.driver,
            endpoint=self._info.endpoint,
            supported_versions=self._info.services,
        )

    async def _notify_registration_status(
        self, request: api_pb2.RegistrationStatus, context: "Context"
    ) -> api_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            self._rejections = 0
            self.state = RegistrationStatus(is_registered=True)
            self.registered.set()
            LOG.info("The kubelet has registered the driver", driver=self._info.driver)
            return api_pb2.RegistrationStatusResponse()
        error = request.error or "the kubelet gave no reason"
        self.state = RegistrationStatus(is_registered=False, error=error)
        LOG.error("The kubelet rejects the driver", driver=self._info.driver, error=error)
        self._rejected.set()
        return await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"refused: {error}")
