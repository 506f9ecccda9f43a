"""The registration service: GetInfo, and what the kubelet made of us.

Runs on a server of its own, so that GetInfo is answered while prepares are under way. A refusal
is answered with an error and makes the socket appear anew after a back-off, because kubelets up to
1.35 try a refused socket no second time.
Source: spec/kubelet-dra-protocol.md §1.4; design.md, "Settled".
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from nvdra_api.protocol import registration
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime._generated.pluginregistration.v1 import api_pb2
from nvdra_api.runtime.kubelet import endpoint
from nvdra_api.runtime.kubelet.endpoint import Endpoint

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

_REFUSED = Backoff(first_s=1, ceiling_s=60)
_GRACE_S = 1.0
"""For GetInfo, which is answered from memory."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The kubelet's last word: registered, refused with `error`, or neither yet."""

    is_registered: bool = False
    error: str = ""


class Registrar:
    """Offers the driver to the kubelet for as long as `offered` lasts."""

    def __init__(self, info: registration.PluginInfo, path: Path) -> None:
        self._info = info
        self._endpoint = Endpoint(path, (self._handlers(),), endpoint.unproven, 0o755)
        self._refused = asyncio.Event()
        self._refusals = 0
        self.state = Registration()

    @property
    def problem(self) -> str:
        """Why the kubelet cannot find us; empty when it can."""
        return self._endpoint.problem

    @asynccontextmanager
    async def offered(self, check_s: float) -> AsyncIterator[None]:
        """Listen on the registration socket; it is gone again afterwards."""
        await self._endpoint.open()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = (
                    group.create_task(self._offer_again(), name="registration"),
                    group.create_task(endpoint.keep(self._endpoint, check_s, _GRACE_S)),
                )
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await self._endpoint.close(_GRACE_S)

    async def _offer_again(self) -> None:
        """Replace the socket after every refusal, unless the kubelet changes its mind before."""
        while True:
            await self._refused.wait()
            self._refused.clear()
            self._refusals += 1
            delay = _REFUSED.delay(self._refusals, random.random())  # noqa: S311 - spreads load
            _log.warning("the kubelet will be asked again delay_s=%.1f", delay)
            await asyncio.sleep(delay)
            if not self.state.is_registered:
                await self._endpoint.close(_GRACE_S)
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
                    self._notify,
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

    async def _notify(
        self, request: api_pb2.RegistrationStatus, context: "Context"
    ) -> api_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            self._refusals = 0
            self.state = Registration(is_registered=True)
            _log.info("the kubelet has registered the driver driver=%s", self._info.driver)
            return api_pb2.RegistrationStatusResponse()
        error = request.error or "the kubelet gave no reason"
        self.state = Registration(is_registered=False, error=error)
        _log.error("the kubelet refuses the driver driver=%s error=%s", self._info.driver, error)
        self._refused.set()
        return await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"refused: {error}")
