# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that ends when its last call is answered.

`grpc.aio.Server.stop` waits for connections as well: for a client that does not acknowledge their
end, and for a call that arrived as the server stopped and that no handler ever gets. Both can last
for the whole grace period (docs/reference/kubelet-plugin.md, "gRPC server behaviour").
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

_SETTLE_S = 0.2
"""A call whose beginning or answer is on its way gets so long."""

_MESSAGE_S = 2.0
"""A call that has begun gets so long for its message; its client may have gone away."""

_SETTLE_PARTS = 4
"""A loop that was blocked uses up one part only."""


class PromptServer:
    """A server for these handlers."""

    def __init__(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self._calls = _ActiveCalls()
        self._server = grpc.aio.server(interceptors=(self._calls,))
        self._server.add_generic_rpc_handlers(handlers)

    async def start(self, address: str) -> None:
        """Serve on an address.

        Raises:
            RuntimeError: The address cannot be bound.
        """
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls, wait up to `grace_s` for those in progress, and end."""
        async with asyncio.TaskGroup() as group:
            once_idle = group.create_task(self._stop_once_idle(), name="end of an idle server")
            await self._server.stop(grace_s)
            once_idle.cancel()

    async def _stop_once_idle(self) -> None:
        await self._calls.wait_idle()
        await self._server.stop(None)


class _ActiveCalls(grpc.aio.ServerInterceptor):
    """Counts the calls that a server handles now.

    Handlers have one request, and one response or a stream of them, as all of this driver have.
    """

    def __init__(self) -> None:
        self._begun = self._count = 0
        self._without_message: dict[int, float] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call, which begins: its message may not have come yet."""
        self._begun = number = self._begun + 1
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        self._forget_calls_without_message()
        self._without_message[number] = asyncio.get_running_loop().time()
        encoding = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._counted_stream(handler.unary_stream, number), *encoding
            )
        return grpc.unary_unary_rpc_method_handler(
            self._counted(handler.unary_unary, number), *encoding
        )

    async def wait_idle(self) -> None:
        """Wait until for a moment no call has been handled and none has begun."""
        while True:
            await self._is_idle.wait()
            begun = self._begun
            for _ in range(_SETTLE_PARTS):
                await asyncio.sleep(_SETTLE_S / _SETTLE_PARTS)
            self._forget_calls_without_message()
            is_quiet = self._begun == begun and not self._without_message
            if self._is_idle.is_set() and is_quiet:
                return

    def _forget_calls_without_message(self) -> None:
        since = asyncio.get_running_loop().time() - _MESSAGE_S
        for number in [each for each, began in self._without_message.items() if began < since]:
            del self._without_message[number]

    def _begin(self, number: int) -> None:
        """A call has its message."""
        self._without_message.pop(number, None)
        self._count += 1
        self._is_idle.clear()

    def _end(self) -> None:
        self._count -= 1
        if not self._count:
            self._is_idle.set()

    def _counted(self, handle: Callable[[Any, Any], Awaitable[Any]], number: int) -> Any:
        async def handle_counted(request: Any, context: Any) -> Any:
            self._begin(number)
            try:
                return await handle(request, context)
            finally:
                self._end()

        return handle_counted

    def _counted_stream(self, handle: Callable[[Any, Any], AsyncIterator[Any]], number: int) -> Any:
        async def handle_counted(request: Any, context: Any) -> AsyncIterator[Any]:
            self._begin(number)
            try:
                async for response in handle(request, context):
                    yield response
            finally:
                self._end()

        return handle_counted
