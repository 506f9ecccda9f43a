# SPDX-License-Identifier: Apache-2.0
"""Routes the kubelet's DRA calls to the instance of the driver that can answer them.

One instance of a driver is active on a node (docs/design.md, "Rollouts do not interrupt"). Another
one that the kubelet calls passes the call on as it is. If the answering instance ends meanwhile,
the call is kept, and answered by this instance as soon as it is active. This is safe because both
methods may be repeated. A call is passed on once: it is marked, and a marked one is answered or
kept, never passed on again.
Source: docs/reference/kubelet-plugin.md, "Rolling updates".
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import grpc
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime._generated.dra.v1 import api_pb2
from nvdra_runtime.claims import call_answers
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.kubeletplugin import grpc_service, registration
from nvdra_runtime.kubeletplugin.grpc_service import ClaimHandler, DraPluginService
from nvdra_runtime.process import timeouts
from nvdra_runtime.telemetry import logs

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]
    _RawCall = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]

LOG = logs.logger(__name__)

_PASSED_ON: Final = "nvdra-passed-on"
"""Metadata key that marks a call as passed on by another instance."""

_PASSED_METADATA: Final = ("traceparent", "tracestate")

_RETRY_S: Final = 0.1
"""Between two attempts while no instance answers. The one that stands by is active within 50 ms
after the lock is free, plus the time of its start."""

_STOP_NOTICE_S: Final = 2.0
"""How long an error is held back to see whether it was caused by the end of the instance that gave
it: a prepare that waits for a device is then answered although its device may soon be free. The
kubelet repeats a failed prepare after 60 s, so no pod waits longer because of this."""

_STOP_CHECK_S: Final = 0.2

_PROBE_TIMEOUT_S: Final = 1.0

_UNANSWERED: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)
"""Statuses of a call whose server has ended. Ours answers every error inside the response."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    # A socket that is gone is tried again at once: the next one may be there.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)

_RESPONSES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "NodePrepareResources": api_pb2.NodePrepareResourcesResponse,
        "NodeUnprepareResources": api_pb2.NodeUnprepareResourcesResponse,
    }
)

_METHODS: Final = frozenset(
    f"/{service}/{method}"
    for service in (registration.DRA_V1, registration.DRA_V1BETA1)
    for method in _RESPONSES
)

_Methods = Mapping[str, Any]
"""gRPC's handlers of methods, by name."""

FindPeer = Callable[[], Path | None]
"""The DRA socket of the instance that answers now; None if there is none. Must not block."""


class _Unanswered(Exception):
    """The other instance has not answered the call, or only because it is ending."""


class CallRouter(grpc.GenericRpcHandler):
    """Handles the calls on this instance's DRA socket.

    Until `answer_with` is called, calls are passed on to the active instance, and kept while there
    is none. After `stop_answering`, they are passed on to the successor.
    """

    def __init__(self, find_active: FindPeer) -> None:
        self._find_peer = find_active
        self._methods: _Methods = {}
        self._refusals = _methods_of(_Refusals())
        self._answers = asyncio.Event()
        self._is_stopping = False
        self._channels: dict[Path, grpc.aio.Channel] = {}
        self._handlers = {method: self._handler(method) for method in _METHODS}

    async def aclose(self) -> None:
        """Close the connections to other instances; for `contextlib.aclosing`."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def answer_with(self, handler: ClaimHandler) -> None:
        """Answer all calls from now on, also those that are kept: this instance is active."""
        self._methods = _methods_of(handler)
        self._answers.set()

    def stop_answering(self, find_successor: FindPeer) -> None:
        """Pass calls on to a successor, because this instance is ending.

        So are calls in progress that fail from now on, since that may be the reason. Marked calls
        are given back to the instance that passed them on.
        """
        self._is_stopping = True
        self._find_peer = find_successor
        self._answers.clear()

    # The name and the parameters are gRPC's.
    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None if there is no such method."""
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: str) -> Any:
        async def handle(request: bytes, context: "Context") -> bytes:
            return await self._handle(method, request, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _handle(self, method: str, request: bytes, context: "Context") -> bytes:
        if self._answers.is_set():
            response = await _answer(self._methods[method], request, context)
            if not self._is_stopping or not _has_errors(method, response):
                return response
        if self._is_stopping and (_is_marked(context) or not request):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this instance is stopping")
        if not request:  # no claims: the caller asks whether the socket is served
            return b""
        if _is_marked(context):
            return await self._keep(method, request, context)
        return await self._pass_on(method, request, context)

    async def _pass_on(self, method: str, request: bytes, context: "Context") -> bytes:
        """Let another instance answer, or answer as soon as this one is active."""
        deadlines = call_answers.deadlines(grpc_service.deadline_of(context))
        loop = asyncio.get_running_loop()
        while not self._answers.is_set():
            peer = self._find_peer()
            if peer is not None:
                try:
                    return await self._send(peer, method, request, context, deadlines.answer)
                except _Unanswered as error:
                    LOG.v(4, "A call was not answered and is sent again", error=str(error))
            remaining = deadlines.work - loop.time()
            if remaining <= 0:
                return await _answer(self._refusals[method], request, context)
            await timeouts.wait_for_event(self._answers, min(_RETRY_S, remaining))
        return await _answer(self._methods[method], request, context)

    async def _keep(self, method: str, request: bytes, context: "Context") -> bytes:
        """Answer as soon as this instance is active, or refuse shortly before the deadline."""
        deadlines = call_answers.deadlines(grpc_service.deadline_of(context))
        remaining = deadlines.work - asyncio.get_running_loop().time()
        is_active = await timeouts.wait_for_event(self._answers, max(0.0, remaining))
        methods = self._methods if is_active else self._refusals
        return await _answer(methods[method], request, context)

    async def _send(
        self, peer: Path, method: str, request: bytes, context: "Context", deadline: float
    ) -> bytes:
        """Send the call to another instance, with what is left of its time.

        Raises:
            _Unanswered: The other instance has ended, or is ending.
        """
        loop = asyncio.get_running_loop()
        channel = self._channel(peer)
        call: _RawCall = channel.unary_unary(method)
        timeout_s = grpc_service.deadline_of(context) - loop.time()
        try:
            response = await call(request, timeout=timeout_s, metadata=_passed_metadata(context))
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNANSWERED:
                raise _Unanswered(error.details() or error.code().name) from error
            return await context.abort(error.code(), error.details() or "")
        if _has_errors(method, response):
            until = min(loop.time() + _STOP_NOTICE_S, deadline)
            if await self._is_ending(channel, method, until):
                raise _Unanswered("the instance that answered is ending")
        return response

    async def _is_ending(self, channel: grpc.aio.Channel, method: str, until: float) -> bool:
        """Whether the other instance stops serving before `until`."""
        loop = asyncio.get_running_loop()
        probe: _RawCall = channel.unary_unary(method)
        while loop.time() < until:
            try:
                await probe(b"", timeout=_PROBE_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return error.code() in _UNANSWERED
            await timeouts.wait_for_event(self._answers, min(_STOP_CHECK_S, until - loop.time()))
        return False

    def _channel(self, peer: Path) -> grpc.aio.Channel:
        if peer not in self._channels:
            self._channels[peer] = grpc.aio.insecure_channel(f"unix:{peer}", _CHANNEL_OPTIONS)
        return self._channels[peer]


class _Refusals:
    """Refuses claims, because no instance was active until shortly before the deadline."""

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PrepareResult | str]:
        return {claim.uid: _refusal() for claim in claims}

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        return {claim.uid: _refusal() for claim in claims}


def _refusal() -> str:
    return str(
        RetryableError(
            Reason.DEADLINE_EXCEEDED,
            "the driver's plugin is being replaced on this node, and no instance of it was active "
            "until the deadline of the call",
            "the kubelet repeats the call; if this lasts, look at the plugin's pods on the node",
        )
    )


def _methods_of(handler: ClaimHandler) -> "_Methods":
    """The gRPC methods that answer with this handler, by name."""
    services = DraPluginService(handler).handlers()
    return {
        name: method
        for name in _METHODS
        for service in services
        if (method := service.service(_CallDetails(name))) is not None
    }


async def _answer(found: Any, request: bytes, context: "Context") -> bytes:
    """Answer a call with a method."""
    message = found.request_deserializer(request)
    answer: bytes = found.response_serializer(await found.unary_unary(message, context))
    return answer


class _CallDetails(grpc.HandlerCallDetails):
    """What a service needs to know to find a method."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


def _has_errors(method: str, response: bytes) -> bool:
    """Whether the answer for a claim is an error."""
    message = _RESPONSES[method.rpartition("/")[2]].FromString(response)
    return any(entry.error for entry in message.claims.values())


def _is_marked(context: "Context") -> bool:
    return any(key == _PASSED_ON for key, _ in context.invocation_metadata() or ())


def _passed_metadata(context: "Context") -> tuple[tuple[str, str | bytes], ...]:
    kept = [
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if key in _PASSED_METADATA
    ]
    return (*kept, (_PASSED_ON, "1"))
