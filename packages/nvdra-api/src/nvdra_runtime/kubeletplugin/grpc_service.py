# SPDX-License-Identifier: Apache-2.0
"""The kubelet's gRPC service `DRAPlugin`: converts messages, and calls a `ClaimHandler`.

v1 and v1beta1 have the same methods and message classes; v1beta1 answers without share IDs.
grpc.aio cancels a method when its caller gives up, so the handler keeps operations running by
itself.
Source: docs/reference/kubelet-plugin.md, "Service names" to "Unprepare", "gRPC server behaviour".
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime._generated.dra.v1 import api_pb2
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.kubeletplugin import messages, registration
from nvdra_runtime.telemetry import logs

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]

LOG = logs.logger(__name__)

_CALLS_VERBOSITY = 6
"""Each call and its answer are for developers: spans and metrics tell the rest."""

DEFAULT_TIMEOUT_S = 45.0
"""The deadline of a caller that sets none; the kubelet's own."""


class ClaimHandler(Protocol):
    """Prepares and unprepares claims; for plugins, `nvdra_runtime.claims.service.ClaimService`.

    `deadline` is when the kubelet gives up, in monotonic seconds of the loop's clock. `traceparent`
    is the W3C trace context of the call. Each method answers for every claim. A string is the error
    for this claim, as the user reads it.
    """

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PrepareResult | str]:
        """Prepare the claims. May be called again for the same claims, also while it runs."""
        ...

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        """Unprepare the claims. None is success, also for a claim that was never prepared."""
        ...


class DraPluginService:
    """Both versions of the service, for one handler."""

    def __init__(self, handler: ClaimHandler) -> None:
        self._handler = handler
        self._calls = itertools.count(1)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The gRPC handlers of v1 and v1beta1, for `Server.add_generic_rpc_handlers`."""
        return (
            self._handlers(registration.DRA_V1, with_share_ids=True),
            self._handlers(registration.DRA_V1BETA1, with_share_ids=False),
        )

    def _handlers(self, service: str, *, with_share_ids: bool) -> grpc.GenericRpcHandler:
        prepare = self._prepare_v1 if with_share_ids else self._prepare_v1beta1
        return grpc.method_handlers_generic_handler(
            service,
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    prepare,
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

    async def _prepare_v1(
        self, request: api_pb2.NodePrepareResourcesRequest, context: "Context"
    ) -> api_pb2.NodePrepareResourcesResponse:
        return await self._prepare(request, context, with_share_ids=True)

    async def _prepare_v1beta1(
        self, request: api_pb2.NodePrepareResourcesRequest, context: "Context"
    ) -> api_pb2.NodePrepareResourcesResponse:
        return await self._prepare(request, context, with_share_ids=False)

    async def _prepare(
        self,
        request: api_pb2.NodePrepareResourcesRequest,
        context: "Context",
        *,
        with_share_ids: bool,
    ) -> api_pb2.NodePrepareResourcesResponse:
        """NodePrepareResources."""
        claims = messages.claim_refs(request)
        call = self._log_call("NodePrepareResources", claims)
        results: Mapping[ClaimUID, PrepareResult | str]
        try:
            results = await self._handler.prepare(
                claims, deadline_of(context), _traceparent(context)
            )
            response = messages.prepare_response(claims, results, with_share_ids=with_share_ids)
        except Exception as error:  # noqa: BLE001 - grpc.aio would send its text to the caller
            text = _log_crash(call, claims, error)
            results = dict.fromkeys((claim.uid for claim in claims), text)
            response = messages.prepare_response(claims, results, with_share_ids=with_share_ids)
        _log_answer(call, response)
        return response

    async def _unprepare(
        self, request: api_pb2.NodeUnprepareResourcesRequest, context: "Context"
    ) -> api_pb2.NodeUnprepareResourcesResponse:
        """NodeUnprepareResources."""
        claims = messages.claim_refs(request)
        call = self._log_call("NodeUnprepareResources", claims)
        errors: Mapping[ClaimUID, str | None]
        try:
            errors = await self._handler.unprepare(
                claims, deadline_of(context), _traceparent(context)
            )
            response = messages.unprepare_response(claims, errors)
        except Exception as error:  # noqa: BLE001 - grpc.aio would send its text to the caller
            text = _log_crash(call, claims, error)
            errors = dict.fromkeys((claim.uid for claim in claims), text)
            response = messages.unprepare_response(claims, errors)
        _log_answer(call, response)
        return response

    def _log_call(self, method: str, claims: Sequence[ClaimRef]) -> int:
        call = next(self._calls)
        if LOG.is_enabled(_CALLS_VERBOSITY):
            names = [str(claim) for claim in claims]
            LOG.v(_CALLS_VERBOSITY, "Called by the kubelet", call=call, method=method, claims=names)
        return call


def _log_answer(call: int, response: object) -> None:
    if LOG.is_enabled(_CALLS_VERBOSITY):
        text = " ".join(str(response).split())
        LOG.v(_CALLS_VERBOSITY, "Answered the kubelet", call=call, answer=text)


def _log_crash(call: int, claims: Sequence[ClaimRef], error: Exception) -> str:
    """Log an unexpected exception. Returns the error for each claim."""
    names = [str(claim) for claim in claims]
    LOG.failure("A call failed unexpectedly", error, call=call, claims=names)
    return f"Internal: the driver failed unexpectedly; look for call {call} in its log"


def deadline_of(context: "Context") -> float:
    """When the caller gives up, in monotonic seconds of the loop's clock."""
    remaining = context.time_remaining()
    timeout_s = DEFAULT_TIMEOUT_S if remaining is None else remaining
    return asyncio.get_running_loop().time() + timeout_s


def _traceparent(context: "Context") -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent":
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return None
