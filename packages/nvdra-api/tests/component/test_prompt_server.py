# SPDX-License-Identifier: Apache-2.0
"""A server that ends with its last call: what counts as one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from nvdra_runtime.kubeletplugin.prompt_server import PromptServer

GRACE_S = 30.0


def identity(message: bytes) -> bytes:
    return message


class Calls:
    """Methods that say when they run, and end when the test says so."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.may_end = asyncio.Event()

    async def answer(self, request: bytes, _: Any) -> bytes:
        """Answers with the request."""
        self.entered.set()
        await self.may_end.wait()
        return request

    async def stream(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        """Sends the request at once and again at its end."""
        self.entered.set()
        yield request
        await self.may_end.wait()
        yield request

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        methods = {
            "Answer": grpc.unary_unary_rpc_method_handler(self.answer, identity, identity),
            "Stream": grpc.unary_stream_rpc_method_handler(self.stream, identity, identity),
        }
        return (grpc.method_handlers_generic_handler("test", methods),)


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"unix:{tmp_path_factory.mktemp('s') / 's'}"


async def stop_while(server: PromptServer, calls: Calls, call: Any) -> bytes:
    """Stop the server; later than it waits for an idle one, let the call end."""
    async with asyncio.timeout(GRACE_S / 2), asyncio.TaskGroup() as group:
        stopping = group.create_task(server.stop(GRACE_S))
        await asyncio.sleep(1)
        assert not stopping.done()
        calls.may_end.set()
        answer: bytes = await call
        return answer


async def test_a_call_in_progress_is_answered(address: str) -> None:
    calls = Calls()
    server = PromptServer(calls.handlers())
    await server.start(address)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary("/test/Answer", identity, identity)(b"one")
        await calls.entered.wait()
        assert await stop_while(server, calls, call) == b"one"


async def test_a_stream_in_progress_ends_by_itself(address: str) -> None:
    calls = Calls()
    server = PromptServer(calls.handlers())
    await server.start(address)

    async def last_of(call: Any) -> bytes:
        answers: list[bytes] = [each async for each in call]
        return answers[-1]

    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_stream("/test/Stream", identity, identity)(b"two")
        await calls.entered.wait()
        assert await stop_while(server, calls, last_of(call)) == b"two"


async def test_a_call_whose_message_comes_as_the_server_stops_is_answered(address: str) -> None:
    calls = Calls()
    calls.may_end.set()
    server = PromptServer(calls.handlers())
    await server.start(address)
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.unary_unary("/test/Answer", identity, identity)(b"the channel is ready")
        call = channel.stream_unary("/test/Answer", identity, identity)()
        await asyncio.sleep(0.1)  # the server knows that it has begun
        async with asyncio.timeout(GRACE_S / 2), asyncio.TaskGroup() as group:
            group.create_task(server.stop(GRACE_S))
            await asyncio.sleep(0.5)  # both processes share a busy machine
            await call.write(b"three")
            await call.done_writing()
            assert await call == b"three"


async def test_calls_that_never_get_a_message_are_not_waited_for(address: str) -> None:
    calls = Calls()
    server = PromptServer(calls.handlers())
    await server.start(address)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_unary("/test/Answer", identity, identity)()
        await call.wait_for_connection()
        async with asyncio.timeout(GRACE_S / 2):
            await server.stop(GRACE_S)
        call.cancel()
