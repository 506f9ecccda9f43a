"""Serve one driver to the kubelet: the DRA socket first, then the registration socket.

`serving` is the whole interface. It prepares nothing itself (`Handler` does) and publishes nothing.
Source: spec/kubelet-dra-protocol.md §1.4, §2.13, §8.2.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from nvdra_api.protocol import registration
from nvdra_api.runtime._generated.dra.v1 import api_pb2
from nvdra_api.runtime.kubelet import endpoint
from nvdra_api.runtime.kubelet.endpoint import Endpoint
from nvdra_api.runtime.kubelet.registrar import Registrar, Registration
from nvdra_api.runtime.kubelet.service import KUBELET_DEADLINE_S, Handler, Service

_log = logging.getLogger(__name__)

_PROBE_S = 5.0


class Kubelet:
    """How we stand with the kubelet, for probes and status."""

    def __init__(self, registrar: Registrar, service: Endpoint) -> None:
        self._registrar = registrar
        self._service = service

    @property
    def registration(self) -> Registration:
        """The kubelet's last word."""
        return self._registrar.state

    @property
    def is_registered(self) -> bool:
        """Has the kubelet accepted us since we offered ourselves?"""
        return self._registrar.state.is_registered

    @property
    def problem(self) -> str:
        """Why it cannot reach us now; empty when it can."""
        return self._service.problem or self._registrar.problem


@asynccontextmanager
async def serving(
    driver: str,
    plugin_dir: Path,
    registry_dir: Path,
    handler: Handler,
    *,
    grace_s: float = 20.0,
    check_s: float = 5.0,
) -> AsyncIterator[Kubelet]:
    """Answer the kubelet until the block is left.

    Starts the DRA service (v1 and v1beta1) on `<plugin_dir>/dra.sock`, proves with an empty prepare
    that it answers, then offers `<registry_dir>/<driver>-reg.sock`. Leaving the block takes no new
    calls, waits up to `grace_s` for those under way, and removes both sockets; slices and prepared
    devices stay. Every `check_s` seconds both socket files are looked at; one that was removed,
    with its directory or without, is made again, and calls under way on the old one are answered.

    Raises:
        ValueError: a socket's path is relative or too long.
        OSError: another instance serves there, or a socket cannot be made.
    """
    paths = registration.sockets(driver, str(plugin_dir), str(registry_dir))
    service = Endpoint(Path(paths.dra), Service(handler).handlers(), _probe, 0o750)
    registrar = Registrar(registration.info(driver, paths), Path(paths.registration))
    await service.open()
    try:
        async with registrar.offered(check_s), asyncio.TaskGroup() as group:
            _log.info(
                "serving the kubelet socket=%s registration=%s", paths.dra, paths.registration
            )
            check = group.create_task(
                endpoint.keep(service, check_s, KUBELET_DEADLINE_S), name="socket check"
            )
            try:
                yield Kubelet(registrar, service)
            finally:
                check.cancel()
                # Before the registration goes: a kubelet that sees it gone drops its connection,
                # and with it the calls that we wait for here.
                await service.close(grace_s)
    finally:
        await service.close(0)  # where there was no registration


async def _probe(path: Path) -> None:
    """Prove that the DRA socket answers: a prepare of no claims."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(
            f"/{registration.DRA_V1}/NodePrepareResources",
            request_serializer=api_pb2.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=api_pb2.NodePrepareResourcesResponse.FromString,
        )
        await call(api_pb2.NodePrepareResourcesRequest(), timeout=_PROBE_S)
