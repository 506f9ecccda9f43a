# SPDX-License-Identifier: Apache-2.0
"""Calls of a gRPC server whose every failure is an AioRpcError.

A call that is in progress when its own channel is closed ends with CancelledError in grpc.aio. The
kubelet client closes its channels when a socket goes and when it is restarted, which it does beside
the calls of a test. To its caller such a call has failed like any other: with CANCELLED, as in
grpc-go. CancelledError is left to the cancellation of the caller's task.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import grpc
from google.protobuf.message import Message

ResponseT = TypeVar("ResponseT", bound=Message, covariant=True)


class MessageType(Protocol[ResponseT]):
    """A class of messages."""

    def FromString(self, text: bytes, /) -> ResponseT: ...


async def call(
    channel: grpc.aio.Channel,
    method: str,
    request: Message,
    response_type: MessageType[ResponseT],
    *,
    timeout_s: float,
    metadata: Sequence[tuple[str, str]] = (),
) -> ResponseT:
    """Call a method, and return its response.

    Raises:
        grpc.aio.AioRpcError: The call failed.
    """
    with _closed_channel_as_error():
        method_call = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        return await method_call(request, timeout=timeout_s, metadata=tuple(metadata))


async def stream(
    channel: grpc.aio.Channel, method: str, request: Message, response_type: MessageType[ResponseT]
) -> AsyncIterator[ResponseT]:
    """Call a method, and yield its responses.

    Raises:
        grpc.aio.AioRpcError: The stream failed.
    """
    with _closed_channel_as_error():
        method_call = channel.unary_stream(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        async for response in method_call(request):
            yield response


@contextmanager
def _closed_channel_as_error() -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.CANCELLED,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(),
            details="the connection is closed",
        ) from error
