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
from nvdra_api.runtime.kubelet import sockets

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

_REFUSED = Backoff(first_s=1, ceiling_s=60)


@dataclass(frozen=True, slots=True)
class Registration:
    """The kubelet's last word: registered, refused with `error`, or neither yet."""

    is_registered: bool = False
    error: str = ""


class Registrar:
    """Offers the driver to the kubelet for as long as `offered` lasts."""

    def __init__(self, info: registration.PluginInfo, path: Path) -> None:
        self._info = info
        self._path = path
        self._server: grpc.aio.Server | None = None
        self._socket: sockets.SocketID | None = None
        self._refused = asyncio.Event()
        self._refusals = 0
        self.state = Registration()

    @asynccontextmanager
    async def offered(self) -> AsyncIterator[None]:
        """Listen on the registration socket; it is gone again afterwards."""
        await self._listen()
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._offer_again(), name="registration")
                try:
                    yield
                finally:
                    task.cancel()
        finally:
            await self._hang_up()

    @property
    def has_socket(self) -> bool:
        """Is the file in the registry directory still ours? True while we replace it ourselves."""
        return self._socket is None or sockets.is_ours(self._path, self._socket)

    async def _listen(self) -> None:
        await sockets.claim(self._path)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._server.add_insecure_port(f"unix:{self._path}")
        await self._server.start()
        self._socket = sockets.identify(self._path)

    async def _hang_up(self) -> None:
        self._socket = None
        if self._server is not None:
            await self._server.stop(grace=1)
            self._server = None

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
                await self._hang_up()
                await self._listen()

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
