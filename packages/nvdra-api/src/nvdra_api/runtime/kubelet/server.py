"""Serve one driver to the kubelet: the DRA socket first, then the registration socket.

`serving` is the whole interface. It prepares nothing itself (`Handler` does) and publishes nothing.
Source: spec/kubelet-dra-protocol.md §1.4, §2.13, §8.2.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from nvdra_api.protocol import registration
from nvdra_api.runtime._generated.dra.v1 import api_pb2
from nvdra_api.runtime.kubelet import sockets
from nvdra_api.runtime.kubelet.registrar import Registrar, Registration
from nvdra_api.runtime.kubelet.service import Handler, Service

_log = logging.getLogger(__name__)

_PROBE_S = 5.0


class Kubelet:
    """How we stand with the kubelet, for probes and status."""

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar

    @property
    def registration(self) -> Registration:
        """The kubelet's last word."""
        return self._registrar.state

    @property
    def is_registered(self) -> bool:
        """Has the kubelet accepted us since we offered ourselves?"""
        return self._registrar.state.is_registered


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
    devices stay. Every `check_s` seconds both socket files are looked at.

    Raises:
        ValueError: a socket's path is relative or too long.
        OSError: another instance serves there; or, while serving, a socket file was removed or
            replaced, so that the kubelet would talk to nobody: the process has to start again.
    """
    paths = registration.sockets(driver, str(plugin_dir), str(registry_dir))
    plugin_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    registry_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    registrar = Registrar(registration.info(driver, paths), Path(paths.registration))
    async with _dra_service(Path(paths.dra), handler) as service, registrar.offered():
        _log.info("serving the kubelet socket=%s registration=%s", paths.dra, paths.registration)
        async with asyncio.TaskGroup() as group:
            check = group.create_task(
                _check_sockets(service, registrar, check_s), name="socket check"
            )
            try:
                yield Kubelet(registrar)
            finally:
                check.cancel()
                # Before the registration goes: a kubelet that sees it gone drops its connection,
                # and with it the calls that we wait for here.
                await service.server.stop(grace=grace_s)


class _DraService(NamedTuple):
    """The running server and the file it listens on."""

    server: grpc.aio.Server
    path: Path
    socket: sockets.SocketID


@asynccontextmanager
async def _dra_service(path: Path, handler: Handler) -> AsyncIterator[_DraService]:
    await sockets.claim(path)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(Service(handler).handlers())
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        socket = sockets.identify(path)
        await _probe(path)
        yield _DraService(server, path, socket)
    finally:
        await server.stop(grace=0)


async def _probe(path: Path) -> None:
    """Prove that the DRA socket answers: a prepare of no claims."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(
            f"/{registration.DRA_V1}/NodePrepareResources",
            request_serializer=api_pb2.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=api_pb2.NodePrepareResourcesResponse.FromString,
        )
        await call(api_pb2.NodePrepareResourcesRequest(), timeout=_PROBE_S)


async def _check_sockets(service: _DraService, registrar: Registrar, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        if not sockets.is_ours(service.path, service.socket):
            raise OSError(errno.ENOENT, "our DRA socket was removed or replaced", str(service.path))
        if not registrar.has_socket:
            raise OSError(errno.ENOENT, "our registration socket was removed or replaced")
