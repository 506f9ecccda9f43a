# SPDX-License-Identifier: Apache-2.0
"""The kubelet's gRPC service `DRAResourceHealth`: streams the health of the driver's devices.

The kubelet watches every instance that it has registered, and keeps one state of the driver, which
it drops when any of the streams ends. So an instance that stands by sends what the active one says
(`peer_health`), and one that ends closes its streams before another one is active.
Source: docs/reference/kubelet-plugin.md, "Health service".
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
from nvdra_api import texts

from nvdra_runtime._generated.drahealth.v1 import api_pb2
from nvdra_runtime.kubeletplugin import registration
from nvdra_runtime.kubeletplugin.device_health import DeviceHealth, HealthSource
from nvdra_runtime.process import timeouts
from nvdra_runtime.telemetry import logs

if TYPE_CHECKING:
    # The stubs know what a context carries; the class at run time takes no parameters.
    Context = grpc.aio.ServicerContext[Any, Any]

LOG = logs.logger(__name__)

REPEAT_S: Final = 10.0
"""Between two messages without a change."""

TIMEOUT_S: Final = 30
"""After so long without a message the kubelet takes the health for unknown; its own default."""

_MESSAGE_BYTES: Final = 1024
"""What the kubelet accepts. It would cut a longer one within a character."""

_CUT: Final = "..."


class HealthService:
    """Both versions of the service, which have the same messages."""

    def __init__(self, repeat_s: float = REPEAT_S) -> None:
        """Create it without a source: streams stay open, and nothing is sent.

        Args:
            repeat_s: Between two messages without a change.
        """
        self._repeat_s = repeat_s
        self._source: HealthSource | None = None
        self._is_ended = False
        self._changed = asyncio.Event()

    def report(self, source: HealthSource) -> None:
        """Send what this source knows, from now on, in place of what another one has known."""
        self._source = source
        source.on_change(self._notify)
        self._notify()

    def end(self) -> None:
        """End all streams, because this instance ends."""
        self._is_ended = True
        self._notify()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The gRPC handlers of v1 and v1alpha1, for `Server.add_generic_rpc_handlers`."""
        method = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=api_pb2.NodeWatchResourcesRequest.FromString,
            response_serializer=api_pb2.NodeWatchResourcesResponse.SerializeToString,
        )
        return tuple(
            grpc.method_handlers_generic_handler(service, {"NodeWatchResources": method})
            for service in registration.HEALTH_SERVICES
        )

    async def _watch(
        self, request: api_pb2.NodeWatchResourcesRequest, context: "Context"
    ) -> AsyncIterator[api_pb2.NodeWatchResourcesResponse]:
        """NodeWatchResources."""
        LOG.v(4, "The kubelet watches the health of devices")
        loop = asyncio.get_running_loop()
        sent: Sequence[DeviceHealth] | None = None
        repeat_at = 0.0
        while not self._is_ended:
            changed = self._changed  # before the source is read: what changes later is seen
            devices = None if self._source is None else self._source.devices
            if devices is not None and (devices != sent or loop.time() >= repeat_at):
                sent, repeat_at = devices, loop.time() + self._repeat_s
                yield _response(devices)
            remaining = None if devices is None else max(0.0, repeat_at - loop.time())
            await timeouts.wait_for_event(changed, remaining)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _response(devices: Sequence[DeviceHealth]) -> api_pb2.NodeWatchResourcesResponse:
    return api_pb2.NodeWatchResourcesResponse(devices=[_message(device) for device in devices])


def _message(health: DeviceHealth) -> api_pb2.DeviceHealth:
    return api_pb2.DeviceHealth(
        device=api_pb2.DeviceIdentifier(pool_name=health.pool, device_name=health.device),
        health=api_pb2.HealthStatus.Name(health.status.value),
        last_updated_time=int(health.since.timestamp()),
        health_check_timeout_seconds=TIMEOUT_S,
        message=shortened(health.message),
    )


def shortened(text: str) -> str:
    """The text, or as much of it as the kubelet accepts."""
    text = texts.encodable(text)
    data = text.encode()
    if len(data) <= _MESSAGE_BYTES:
        return text
    return data[: _MESSAGE_BYTES - len(_CUT)].decode(errors="ignore") + _CUT
