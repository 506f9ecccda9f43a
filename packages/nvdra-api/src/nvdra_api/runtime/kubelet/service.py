"""The DRA service on the wire: requests become values, values become answers.

v1 and v1beta1 are bound to the same methods and the same message classes; v1beta1 answers without
share ids. What to do about a claim is the component's `Handler`. grpc.aio cancels a handler when
its caller gives up, so work that must go on is the handler's to keep (`process.flights`).
Source: spec/kubelet-dra-protocol.md §2.1-§2.5, §8.5.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from nvdra_api.protocol import registration
from nvdra_api.runtime._generated.dra.v1 import api_pb2
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import ClaimUID
from nvdra_api.types.prepared import PreparedClaim, PreparedDevice

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

A = TypeVar("A")

KUBELET_DEADLINE_S = 45.0
"""What a caller that sets no deadline gets; the kubelet's own."""

_NO_ANSWER = "Internal: the driver gave no answer for this claim; look for the call in its log"


class Handler(Protocol):
    """What a driver does about claims.

    `deadline` is when the kubelet gives up, on the loop's monotonic clock; `traceparent` is the W3C
    trace context that came with the call, if any did. Each method answers for every claim it got: a
    string is the error for that claim, as the user will read it.
    """

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PreparedClaim | str]:
        """Make the claims' devices usable; safe to repeat, also while it still runs."""
        ...

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        """Take back what prepare did; None, also for a claim never seen, is success."""
        ...


class Service:
    """Both DRA services over one handler."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._calls = itertools.count(1)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The two services, for `Server.add_generic_rpc_handlers`."""
        return tuple(
            grpc.method_handlers_generic_handler(
                name,
                {
                    "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                        self._prepare if with_shares else self._prepare_v1beta1,
                        request_deserializer=api_pb2.NodePrepareResourcesRequest.FromString,
                        response_serializer=api_pb2.NodePrepareResourcesResponse.SerializeToString,
                    ),
                    "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                        self._unprepare,
                        request_deserializer=api_pb2.NodeUnprepareResourcesRequest.FromString,
                        response_serializer=api_pb2.NodeUnprepareResourcesResponse.SerializeToString,
                    ),
                },
            )
            for name, with_shares in (
                (registration.DRA_V1, True),
                (registration.DRA_V1BETA1, False),
            )
        )

    async def _prepare(
        self,
        request: api_pb2.NodePrepareResourcesRequest,
        context: "Context",
        with_shares: bool = True,
    ) -> api_pb2.NodePrepareResourcesResponse:
        claims = _claims(request)
        call = self._started("NodePrepareResources", claims)
        answers = await _asked(self._handler.prepare, call, claims, context)
        response = api_pb2.NodePrepareResourcesResponse()
        for claim in claims:
            _answer(response.claims[claim.uid], answers.get(claim.uid, _NO_ANSWER), with_shares)
        self._answered(call, response)
        return response

    async def _prepare_v1beta1(
        self, request: api_pb2.NodePrepareResourcesRequest, context: "Context"
    ) -> api_pb2.NodePrepareResourcesResponse:
        return await self._prepare(request, context, with_shares=False)

    async def _unprepare(
        self, request: api_pb2.NodeUnprepareResourcesRequest, context: "Context"
    ) -> api_pb2.NodeUnprepareResourcesResponse:
        claims = _claims(request)
        call = self._started("NodeUnprepareResources", claims)
        answers = await _asked(self._handler.unprepare, call, claims, context)
        response = api_pb2.NodeUnprepareResourcesResponse()
        for claim in claims:
            response.claims[claim.uid].error = answers.get(claim.uid, _NO_ANSWER) or ""
        self._answered(call, response)
        return response

    def _started(self, method: str, claims: Sequence[ClaimRef]) -> int:
        call = next(self._calls)
        if _log.isEnabledFor(logging.DEBUG):
            names = ",".join(map(str, claims))
            _log.debug("the kubelet calls call=%d method=%s claims=%s", call, method, names)
        return call

    def _answered(self, call: int, response: object) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            text = " ".join(str(response).split())
            _log.debug("the kubelet is answered call=%d answer=%s", call, text)


def _claims(
    request: api_pb2.NodePrepareResourcesRequest | api_pb2.NodeUnprepareResourcesRequest,
) -> tuple[ClaimRef, ...]:
    return tuple(
        ClaimRef(claim.namespace, claim.name, ClaimUID(claim.uid)) for claim in request.claims
    )


def _deadline(context: "Context") -> float:
    left = context.time_remaining()
    return asyncio.get_running_loop().time() + (KUBELET_DEADLINE_S if left is None else left)


def _trace(context: "Context") -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent":
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return None


async def _asked(
    handle: Callable[[Sequence[ClaimRef], float, str | None], Awaitable[Mapping[ClaimUID, A]]],
    call: int,
    claims: Sequence[ClaimRef],
    context: "Context",
) -> Mapping[ClaimUID, A | str]:
    """What the handler answers; when it fails as a whole, every claim is told so."""
    try:
        return {**await handle(claims, _deadline(context), _trace(context))}
    except Exception:  # noqa: BLE001 - grpc.aio would send the exception's text to the caller
        return dict.fromkeys((claim.uid for claim in claims), _crashed(call, claims))


def _crashed(call: int, claims: Sequence[ClaimRef]) -> str:
    _log.exception("a call failed unexpectedly call=%d claims=%s", call, ",".join(map(str, claims)))
    return f"Internal: the driver failed unexpectedly; look for call={call} in its log"


def _answer(
    entry: api_pb2.NodePrepareResourceResponse, answer: PreparedClaim | str, with_shares: bool
) -> None:
    if isinstance(answer, str):
        entry.error = answer
        return
    # An entry without devices is an answer too; naming the list makes it present in the map.
    entry.devices.extend(_device(device, with_shares) for device in answer.devices)


def _device(device: PreparedDevice, with_shares: bool) -> api_pb2.Device:
    return api_pb2.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id if with_shares else None,
    )
