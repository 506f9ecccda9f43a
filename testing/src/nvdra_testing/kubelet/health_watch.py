# SPDX-License-Identifier: Apache-2.0
"""The kubelet's watch of the health of devices, and what it remembers.

It does what kubelets with the gate `ResourceHealthStatus` do: one stream for each registered
instance, one state for each driver, which is dropped when any of its streams ends.
Source: docs/reference/kubelet-plugin.md, "Health service"; Kubernetes 1.36.3,
pkg/kubelet/cm/dra/healthinfo.go, `HandleWatchResourcesStream`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
from nvdra_runtime._generated.drahealth.v1 import api_pb2 as health

from nvdra_testing.kubelet import grpc_calls

ALPHA: Final = "v1alpha1.DRAResourceHealth"
PREFERRED: Final = ("v1.DRAResourceHealth", ALPHA)
"""From 1.37 on the kubelet uses the first of these that is advertised."""

_RETRY_S: Final = 5.0


class HealthCache:
    """What the kubelet knows of the devices of all drivers.

    Attributes:
        retry_s: How long after the end of a stream it is opened again.
        messages: Every message that has come, with the driver and the service.
        ends: The statuses with which streams have ended.
    """

    def __init__(self, *, asks_first: bool, retry_s: float = _RETRY_S) -> None:
        """Create it.

        Args:
            asks_first: Whether it watches only what is advertised, as from 1.37 on. Otherwise it
                watches v1alpha1, as 1.34 to 1.36 do.
            retry_s: How long after the end of a stream it is opened again.
        """
        self.retry_s = retry_s
        self.messages: list[tuple[str, str, Any]] = []
        self.ends: list[grpc.StatusCode] = []
        self._asks_first = asks_first
        self._devices: dict[str, dict[str, Any]] = {}

    def statuses(self, driver: str) -> dict[str, str]:
        """The health of a driver's devices, as the status of a pod shows it, by device name."""
        names = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
        found = self._devices.get(driver, {})
        return {key.partition("/")[2]: names[each.health] for key, each in found.items()}

    def device(self, driver: str, name: str) -> Any:
        """The last message about a device."""
        found = self._devices[driver].items()
        return next(each for key, each in found if key.partition("/")[2] == name)

    async def watch(self, driver: str, channel: grpc.aio.Channel, services: Sequence[str]) -> None:
        """Watch one instance until cancelled."""
        advertised = [each for each in PREFERRED if each in services]
        service = (advertised[0] if advertised else "") if self._asks_first else ALPHA
        while service:
            try:
                await self._read(driver, channel, service)
            except grpc.aio.AioRpcError as error:
                self.ends.append(error.code())
                if self._asks_first and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            else:
                self.ends.append(grpc.StatusCode.OK)
            finally:
                self._devices.pop(driver, None)
            await asyncio.sleep(self.retry_s)

    async def _read(self, driver: str, channel: grpc.aio.Channel, service: str) -> None:
        method, request = f"/{service}/NodeWatchResources", health.NodeWatchResourcesRequest()
        messages = grpc_calls.stream(channel, method, request, health.NodeWatchResourcesResponse)
        async for message in messages:
            self.messages.append((driver, service, message))
            known = self._devices.setdefault(driver, {})
            for each in message.devices:
                known[f"{each.device.pool_name}/{each.device.device_name}"] = each
