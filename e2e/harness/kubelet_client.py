"""A gRPC client in the kubelet's place: finds plugins, registers them, calls them, judges answers.

What a kubelet 1.36 does towards a plugin, without pods: the registry directory is polled, GetInfo
is asked with a deadline of 1 s and judged, NotifyRegistrationStatus says the verdict, and one
connection to the DRA socket is kept. A socket that was refused is not tried again before it is
made anew, as by kubelets up to 1.35.
Source: spec/kubelet-dra-protocol.md §1.3-§1.5, §2.4, §6.2.
"""

import asyncio
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from nvdra_api.protocol import registration
from nvdra_api.runtime._generated.dra.v1 import api_pb2 as dra
from nvdra_api.runtime._generated.pluginregistration.v1 import api_pb2 as reg
from nvdra_api.types.claims import ClaimRef

POLL_S = 0.02
GET_INFO_S = 1.0
NOTIFY_S = 5.0
CALL_S = 45.0
SUPPORTED = {"v1.DRAPlugin": registration.DRA_V1, "v1beta1.DRAPlugin": registration.DRA_V1BETA1}


class BadAnswer(AssertionError):
    """The kubelet would fail the pod for this answer, whatever is in it."""


class SocketID(NamedTuple):
    """One appearance of a registration socket."""

    path: Path
    inode: int
    made_ns: int


@dataclass
class Plugin:
    """A registered driver, callable as the kubelet calls it."""

    driver: str
    endpoint: str
    services: tuple[str, ...]
    channel: grpc.aio.Channel
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)
    """(method, request, answer) of every finished call."""

    async def prepare(
        self,
        claims: Sequence[ClaimRef],
        *,
        timeout_s: float = CALL_S,
        service: str = registration.DRA_V1,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Mapping[str, dra.NodePrepareResourceResponse]:
        """NodePrepareResources; the answers by claim UID, errors of single claims among them.

        Raises:
            BadAnswer: a claim was left out, or one answered that nobody asked for.
            grpc.aio.AioRpcError: the call failed as a whole.
        """
        call = self.channel.unary_unary(
            f"/{service}/NodePrepareResources",
            request_serializer=dra.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodePrepareResourcesResponse.FromString,
        )
        request = dra.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = await call(request, timeout=timeout_s, metadata=tuple(metadata))
        self.calls.append(("NodePrepareResources", request, answer))
        return _checked(claims, answer.claims)

    async def unprepare(
        self,
        claims: Sequence[ClaimRef],
        *,
        timeout_s: float = CALL_S,
        service: str = registration.DRA_V1,
    ) -> Mapping[str, dra.NodeUnprepareResourceResponse]:
        """NodeUnprepareResources, judged like prepare."""
        call = self.channel.unary_unary(
            f"/{service}/NodeUnprepareResources",
            request_serializer=dra.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodeUnprepareResourcesResponse.FromString,
        )
        request = dra.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = await call(request, timeout=timeout_s)
        self.calls.append(("NodeUnprepareResources", request, answer))
        return _checked(claims, answer.claims)


class KubeletClient:
    """Watches one registry directory; made by `kubelet`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry_dir = root / "plugins_registry"
        self.plugins: dict[str, Plugin] = {}
        self.refusals: dict[str, list[str]] = {}
        """Driver → texts to refuse its next registrations with, one each."""
        self.attempts: list[tuple[str, str]] = []
        """(driver, verdict) of every registration; an empty verdict is success."""
        self._seen: dict[SocketID, str] = {}
        self._moved = asyncio.Condition()

    def plugin_dir(self, driver: str) -> Path:
        """Where a driver has to serve."""
        return self.root / "plugins" / driver

    async def registered(self, driver: str, timeout_s: float = 10) -> Plugin:
        """Wait until the driver is registered."""
        await self.until(lambda: driver in self.plugins, timeout_s)
        return self.plugins[driver]

    async def gone(self, driver: str, timeout_s: float = 10) -> None:
        """Wait until the driver is no longer registered."""
        await self.until(lambda: driver not in self.plugins, timeout_s)

    async def until(self, is_so: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait for something that registrations change."""
        async with asyncio.timeout(timeout_s), self._moved:
            await self._moved.wait_for(is_so)

    async def restart(self) -> None:
        """Forget everything, as a kubelet that starts does; what is there registers again."""
        for plugin in self.plugins.values():
            await plugin.channel.close()
        self.plugins.clear()
        self._seen.clear()

    async def watch(self) -> None:
        """Reconcile registrations with the sockets that are there, for ever."""
        while True:
            present = _sockets(self.registry_dir)
            for socket in self._seen.keys() - present:
                await self._deregister(self._seen.pop(socket))
            for socket in present - self._seen.keys():
                await self._register(socket)
            async with self._moved:
                self._moved.notify_all()
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Drop every connection."""
        for plugin in self.plugins.values():
            await plugin.channel.close()

    async def _register(self, socket: SocketID) -> None:
        # As for the kubelet, the authority of the registration socket is its path, percent-encoded.
        async with grpc.aio.insecure_channel(f"unix:{socket.path}") as channel:
            try:
                info = await _get_info(channel)
            except grpc.aio.AioRpcError:
                return  # it may not serve yet; looked at again
            self._seen[socket] = info.name
            verdict = self._judge(info)
            self.attempts.append((info.name, verdict))
            if not verdict:
                self.plugins[info.name] = _plugin(info)
            try:
                await _notify(channel, verdict)
            except grpc.aio.AioRpcError:
                await self._deregister(info.name)

    def _judge(self, info: reg.PluginInfo) -> str:
        """Why this plugin cannot be registered; empty when it can."""
        if self.refusals.get(info.name):
            return self.refusals[info.name].pop(0)
        if info.type != registration.PLUGIN_TYPE:
            return f"unknown plugin type {info.type!r}"
        if not Path(info.endpoint).is_relative_to(self.root):
            return f"endpoint {info.endpoint!r} is not below {self.root}"
        if not any(each in SUPPORTED for each in info.supported_versions):
            return f"none of {list(info.supported_versions)} is supported"
        known = self.plugins.get(info.name)
        if known is not None and known.endpoint == info.endpoint:
            return f"{info.name} is already registered at {info.endpoint}"
        return ""

    async def _deregister(self, driver: str) -> None:
        plugin = self.plugins.pop(driver, None)
        if plugin is not None:
            await plugin.channel.close()


@asynccontextmanager
async def kubelet(root: Path) -> AsyncIterator[KubeletClient]:
    """A kubelet with its root directory at `root`, until the block is left.

    Keep `root` short: socket paths have at most 107 bytes.
    """
    client = KubeletClient(root)
    client.registry_dir.mkdir(parents=True, exist_ok=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(client.watch())
        try:
            yield client
        finally:
            task.cancel()
            await client.close()


def _sockets(directory: Path) -> set[SocketID]:
    found: set[SocketID] = set()
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return found  # somebody removed it
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            # Not the ctime: a change of mode makes no new socket.
            found.add(SocketID(path, status.st_ino, status.st_mtime_ns))
    return found


async def _get_info(channel: grpc.aio.Channel) -> reg.PluginInfo:
    call = channel.unary_unary(
        f"/{registration.REGISTRATION_SERVICE}/GetInfo",
        request_serializer=reg.InfoRequest.SerializeToString,
        response_deserializer=reg.PluginInfo.FromString,
    )
    return await call(reg.InfoRequest(), timeout=GET_INFO_S)


async def _notify(channel: grpc.aio.Channel, error: str) -> None:
    call = channel.unary_unary(
        f"/{registration.REGISTRATION_SERVICE}/NotifyRegistrationStatus",
        request_serializer=reg.RegistrationStatus.SerializeToString,
        response_deserializer=reg.RegistrationStatusResponse.FromString,
    )
    status = reg.RegistrationStatus(plugin_registered=not error, error=error)
    await call(status, timeout=NOTIFY_S)


def _plugin(info: reg.PluginInfo) -> Plugin:
    # grpc-go dials `unix:<path>` with the authority "localhost".
    options = [("grpc.default_authority", "localhost")]
    channel = grpc.aio.insecure_channel(f"unix:{info.endpoint}", options=options)
    return Plugin(info.name, info.endpoint, tuple(info.supported_versions), channel)


def _claims(claims: Sequence[ClaimRef]) -> list[dra.Claim]:
    return [dra.Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]


def _checked(claims: Sequence[ClaimRef], answers: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = {str(claim.uid) for claim in claims}
    if unknown := sorted(answers.keys() - asked):
        raise BadAnswer(f"answers for claims nobody asked for: {', '.join(unknown)}")
    if skipped := sorted(asked - answers.keys()):
        raise BadAnswer(f"skipped {len(skipped)} ResourceClaims: {', '.join(skipped)}")
    return answers
