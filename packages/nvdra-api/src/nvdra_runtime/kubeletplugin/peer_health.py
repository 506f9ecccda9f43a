# SPDX-License-Identifier: Apache-2.0
"""The health of devices as the active instance knows it, for one that stands by.

Kubelets up to 1.37 watch every instance that is registered; a later one may watch only the newest
(https://github.com/kubernetes/kubernetes/issues/140818). So both instances say the same.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc
from nvdra_api.ids import DeviceName, PoolName

from nvdra_runtime._generated.drahealth.v1 import api_pb2
from nvdra_runtime.kubeletplugin import registration
from nvdra_runtime.kubeletplugin.device_health import DeviceHealth, HealthStatus
from nvdra_runtime.kubeletplugin.health_service import HealthService
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_RETRY_S: Final = 1.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
)

FindActive = Callable[[], Path | None]
"""The DRA socket of the active instance; None if there is none."""


class PeerHealth:
    """What the active instance says.

    Attributes:
        devices: The health of all devices; None while it says nothing.
    """

    def __init__(self, find_active: FindActive) -> None:
        self.devices: Sequence[DeviceHealth] | None = None
        self._find_active = find_active
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever `devices` has changed."""
        self._on_change.append(notify)

    async def run(self) -> None:
        """Watch the active instance. Run until cancelled; then nothing is known."""
        while True:
            peer = self._find_active()
            if peer is not None:
                await self._watch(peer)
            await asyncio.sleep(_RETRY_S)

    async def _watch(self, peer: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix:{peer}", _CHANNEL_OPTIONS) as channel:
            call = channel.unary_stream(
                f"/{registration.HEALTH_SERVICES[0]}/NodeWatchResources",
                request_serializer=api_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=api_pb2.NodeWatchResourcesResponse.FromString,
            )
            try:
                async for response in call(api_pb2.NodeWatchResourcesRequest()):
                    self._set([_device_health(device) for device in response.devices])
            except grpc.aio.AioRpcError as error:  # it has ended, or is of an earlier release
                LOG.v(4, "The active instance does not say the health of devices", error=str(error))
            finally:
                self._set(None)

    def _set(self, devices: Sequence[DeviceHealth] | None) -> None:
        if devices != self.devices:
            self.devices = devices
            for notify in self._on_change:
                notify()


async def report(health: HealthService | None, find_active: FindActive) -> None:
    """Have the kubelet told what the active instance says. Run until cancelled."""
    if health is not None:
        peer = PeerHealth(find_active)
        health.report(peer)
        await peer.run()


def _device_health(message: api_pb2.DeviceHealth) -> DeviceHealth:
    return DeviceHealth(
        PoolName(message.device.pool_name),
        DeviceName(message.device.device_name),
        HealthStatus(message.health),
        datetime.fromtimestamp(message.last_updated_time, UTC),
        message.message,
    )
