# SPDX-License-Identifier: Apache-2.0
"""Serves one driver to the kubelet: first the DRA socket, then the registration socket.

Source: docs/reference/kubelet-plugin.md, "Registration sequence", "Process life cycle", "Socket
files".
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc

from nvdra_runtime._generated.dra.v1 import api_pb2
from nvdra_runtime.kubeletplugin import registration, socket_server
from nvdra_runtime.kubeletplugin.grpc_service import (
    DEFAULT_TIMEOUT_S,
    ClaimHandler,
    DraPluginService,
)
from nvdra_runtime.kubeletplugin.registrar import Registrar, RegistrationStatus
from nvdra_runtime.kubeletplugin.socket_server import SocketServer
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_PROBE_TIMEOUT_S = 5.0


class KubeletStatus:
    """Whether the kubelet can call the plugin, for probes and status."""

    def __init__(self, registrar: Registrar, service: SocketServer) -> None:
        self._registrar = registrar
        self._service = service

    @property
    def registration(self) -> RegistrationStatus:
        """What the kubelet last reported about the registration."""
        return self._registrar.state

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has registered the plugin."""
        return self._registrar.state.is_registered

    @property
    def problem(self) -> str:
        """Why the kubelet cannot connect; empty if it can."""
        return self._service.problem or self._registrar.problem

    @property
    def registry_dir(self) -> Path:
        """The directory of the socket by which the kubelet finds the plugin."""
        return self._registrar.directory

    async def wait_registered(self) -> None:
        """Wait until the kubelet has registered the plugin."""
        await self._registrar.registered.wait()


@asynccontextmanager
async def serve(
    driver: str,
    plugin_dir: Path,
    registry_dir: Path,
    handler: ClaimHandler,
    *,
    grace_s: float = 20.0,
    check_interval_s: float = 5.0,
) -> AsyncIterator[KubeletStatus]:
    """Serve the kubelet until the block is left.

    The DRA service (v1 and v1beta1) is started on `<plugin_dir>/dra.sock` and verified with an
    empty prepare; then registration is offered on `<registry_dir>/<driver>-reg.sock`. Every
    `check_interval_s` seconds both sockets are checked. One that was removed is created again, and
    calls in progress on the old one are answered. Leaving the block accepts no new calls, waits up
    to `grace_s` for those in progress, and removes both sockets. Slices and prepared claims stay.

    Raises:
        ValueError: A socket's path is relative or too long.
        OSError: Another instance serves there, or a socket cannot be created.
    """
    paths = registration.socket_paths(driver, str(plugin_dir), str(registry_dir))
    handlers = DraPluginService(handler).handlers()
    async with serve_on(
        driver, paths, handlers, grace_s=grace_s, check_interval_s=check_interval_s
    ) as status:
        yield status


@asynccontextmanager
async def serve_on(
    driver: str,
    paths: registration.SocketPaths,
    handlers: tuple[grpc.GenericRpcHandler, ...],
    *,
    reports_health: bool = False,
    grace_s: float = 20.0,
    check_interval_s: float = 5.0,
) -> AsyncIterator[KubeletStatus]:
    """Like `serve`, on these sockets and with these handlers of gRPC calls.

    `reports_health` says whether the services for the health of devices are among them.
    """
    service = SocketServer(Path(paths.dra), handlers, _probe, 0o750)
    info = registration.plugin_info(driver, paths, reports_health=reports_health)
    registrar = Registrar(info, Path(paths.registration))
    status = KubeletStatus(registrar, service)
    await service.open()
    try:
        restore = partial(
            socket_server.run_restore_loop, service, check_interval_s, DEFAULT_TIMEOUT_S
        )
        async with (
            registrar.listening(check_interval_s),
            BackgroundTasks() as tasks,
        ):
            check = tasks.start("socket", restore)
            LOG.info("Serving the kubelet", socket=paths.dra, registration=paths.registration)
            try:
                yield status
            finally:
                check.cancel()
                # Before the registration socket is removed: the kubelet then closes its connection,
                # and would cancel the calls that this waits for.
                await service.close(grace_s)
    finally:
        await service.close(0)  # if the registration socket could not be created


async def _probe(path: Path) -> None:
    """Verify that the DRA socket responds, with a prepare of no claims."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(
            f"/{registration.DRA_V1}/NodePrepareResources",
            request_serializer=api_pb2.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=api_pb2.NodePrepareResourcesResponse.FromString,
        )
        await call(api_pb2.NodePrepareResourcesRequest(), timeout=_PROBE_TIMEOUT_S)
