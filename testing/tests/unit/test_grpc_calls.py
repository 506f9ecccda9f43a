# SPDX-License-Identifier: Apache-2.0
"""Calls whose server ends, whose channel is closed, and whose caller is cancelled."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc
import pytest
from nvdra_runtime._generated.dra.v1 import api_pb2 as dra
from nvdra_runtime._generated.drahealth.v1 import api_pb2 as health
from nvdra_testing.kubelet import grpc_calls

ENOUGH_S = 60
Call = Callable[[grpc.aio.Channel], Awaitable[object]]


async def call(channel: grpc.aio.Channel) -> object:
    request, response = dra.NodePrepareResourcesRequest(), dra.NodePrepareResourcesResponse
    return await grpc_calls.call(channel, "/test/Call", request, response, timeout_s=ENOUGH_S)


async def read(channel: grpc.aio.Channel) -> object:
    request, response = health.NodeWatchResourcesRequest(), health.NodeWatchResourcesResponse
    return [each async for each in grpc_calls.stream(channel, "/test/Read", request, response)]


both = pytest.mark.parametrize("make_call", [call, read])


@pytest.fixture
async def begun() -> asyncio.Event:
    """Set once the server has the call."""
    return asyncio.Event()


@pytest.fixture
async def channel(tmp_path: Path, begun: asyncio.Event) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server that never answers."""
    server = silent_server(tmp_path / "s", begun.set)
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as opened:
        yield opened
    await server.stop(None)


@both
async def test_a_call_whose_channel_is_closed_fails_as_cancelled(
    channel: grpc.aio.Channel, begun: asyncio.Event, make_call: Call
) -> None:
    async with asyncio.timeout(ENOUGH_S), asyncio.TaskGroup() as group:
        failure = group.create_task(outcome(make_call(channel)))
        await begun.wait()
        await channel.close()
    assert failure.result().code() is grpc.StatusCode.CANCELLED


@both
async def test_a_caller_that_is_cancelled_is_cancelled(
    channel: grpc.aio.Channel, begun: asyncio.Event, make_call: Call
) -> None:
    async with asyncio.TaskGroup() as group:
        caller = group.create_task(outcome(make_call(channel)))
        await begun.wait()
        caller.cancel()
    assert caller.cancelled()


@both
async def test_a_caller_whose_time_is_up_gets_a_timeout(
    channel: grpc.aio.Channel, begun: asyncio.Event, make_call: Call
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await make_call(channel)


@both
async def test_a_call_whose_server_is_killed_fails_as_unavailable(
    tmp_path: Path, make_call: Call
) -> None:
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    server = context.Process(target=partial(serve, tmp_path / "s", begun), daemon=True)
    server.start()
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s", options) as channel:
        async with asyncio.timeout(ENOUGH_S):
            await channel.channel_ready()
            async with asyncio.TaskGroup() as group:
                failure = group.create_task(outcome(make_call(channel)))
                await asyncio.to_thread(begun.wait)
                server.kill()
    assert failure.result().code() is grpc.StatusCode.UNAVAILABLE
    server.join()


async def outcome(made: Awaitable[object]) -> grpc.aio.AioRpcError:
    """The error with which a call fails; CancelledError passes."""
    try:
        raise AssertionError(f"it did not fail: {await made}")
    except grpc.aio.AioRpcError as error:
        return error


def silent_server(path: Path, note: Callable[[], object]) -> grpc.aio.Server:
    """A server with a method and a stream, which note that they have begun and never answer."""

    async def answer(_: bytes, __: object) -> bytes:
        note()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def stream(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield await answer(request, context)

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Call": grpc.unary_unary_rpc_method_handler(answer),
        "Read": grpc.unary_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler("test", handlers)])
    server.add_insecure_port(f"unix:{path}")
    return server


def serve(path: Path, begun: Event) -> None:
    """Serve in a process of its own."""

    async def run() -> None:
        server = silent_server(path, begun.set)
        await server.start()
        await server.wait_for_termination()

    asyncio.run(run())
