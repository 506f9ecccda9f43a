# SPDX-License-Identifier: Apache-2.0
"""A gRPC client in the place of the kubelet: finds, registers and calls plugins.

It does what a kubelet 1.36 does with a plugin, without pods: it polls the registry directory, calls
GetInfo with a deadline of 1 s, validates the answer, reports the result with
NotifyRegistrationStatus, and keeps one connection to the DRA socket. Several instances of a driver
may be registered; `plugins` has the one that is called, by default the newest that is connected.
If it watches the health of devices, it watches that of every instance (`health_watch`).
Like kubelets up to 1.35, it tries a rejected socket again only after the socket was created anew.
Source: docs/reference/kubelet-plugin.md, "Supported versions" to "De-registration, restart and
crash", "Rules for the prepare answer", "A test in the kubelet's place".
"""

import asyncio
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from nvdra_api.errors import Reason
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime._generated.dra.v1 import api_pb2 as dra
from nvdra_runtime._generated.pluginregistration.v1 import api_pb2 as reg
from nvdra_runtime.kubeletplugin import registration

from nvdra_testing.kubelet import grpc_calls
from nvdra_testing.kubelet.health_watch import HealthCache
from nvdra_testing.polling import WAIT_S

POLL_S = 0.02
GET_INFO_S = 1.0
NOTIFY_S = 5.0
CALL_S = 45.0
SHORT_S = 4.0
"""Of a call with so much time, 2 s are for waiting."""
_SHORT_CALLS = 3
SUPPORTED = {"v1.DRAPlugin": registration.DRA_V1, "v1beta1.DRAPlugin": registration.DRA_V1BETA1}


class InvalidResponse(AssertionError):
    """The kubelet would fail the pod because of this answer."""


class SocketID(NamedTuple):
    """One registration socket; a socket that is created anew has another identity."""

    path: Path
    inode: int
    created_ns: int


@dataclass(eq=False)
class RegisteredPlugin:
    """A registered driver, which is called as the kubelet calls it."""

    driver: str
    endpoint: str
    services: tuple[str, ...]
    channel: grpc.aio.Channel
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)
    """(method, request, answer) of every finished call."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection to the DRA socket is there. It is opened if it is not."""
        state = self.channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

    async def prepare(
        self,
        claims: Sequence[ClaimRef],
        *,
        timeout_s: float = CALL_S,
        service: str = registration.DRA_V1,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Mapping[str, dra.NodePrepareResourceResponse]:
        """Call NodePrepareResources, and return the answers by claim UID.

        Including errors of claims.

        Raises:
            InvalidResponse: A claim has no answer, or an answer is for no requested claim.
            grpc.aio.AioRpcError: The whole call failed: the plugin has ended (UNAVAILABLE), or this
                client has closed the connection first (CANCELLED), among others.
        """
        request = dra.NodePrepareResourcesRequest(claims=_claim_messages(claims))
        answer = await grpc_calls.call(
            self.channel,
            f"/{service}/NodePrepareResources",
            request,
            dra.NodePrepareResourcesResponse,
            timeout_s=timeout_s,
            metadata=metadata,
        )
        self.calls.append(("NodePrepareResources", request, answer))
        return _check_response(claims, answer.claims)

    async def refusal(self, claim: ClaimRef, timeout_s: float = SHORT_S) -> str:
        """Why one claim is not prepared in a short time; empty if it is.

        The call is repeated when the machine was too slow for it: the API server was not reached in
        time, or the answer came too late.
        """
        for calls_left in reversed(range(_SHORT_CALLS)):
            try:
                text = str((await self.prepare([claim], timeout_s=timeout_s))[claim.uid].error)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or not calls_left:
                    raise
            else:
                if not text.startswith(f"{Reason.API_UNAVAILABLE}: ") or not calls_left:
                    return text
        raise AssertionError("unreachable")

    async def unprepare(
        self,
        claims: Sequence[ClaimRef],
        *,
        timeout_s: float = CALL_S,
        service: str = registration.DRA_V1,
    ) -> Mapping[str, dra.NodeUnprepareResourceResponse]:
        """Call NodeUnprepareResources, and return the answers by claim UID."""
        request = dra.NodeUnprepareResourcesRequest(claims=_claim_messages(claims))
        answer = await grpc_calls.call(
            self.channel,
            f"/{service}/NodeUnprepareResources",
            request,
            dra.NodeUnprepareResourcesResponse,
            timeout_s=timeout_s,
        )
        self.calls.append(("NodeUnprepareResources", request, answer))
        return _check_response(claims, answer.claims)


class KubeletClient:
    """Watches one registry directory; created by `run_kubelet`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry_dir = root / "plugins_registry"
        self.instances: dict[str, list[RegisteredPlugin]] = {}
        """Driver → its registered instances, oldest first."""
        self.prefers_oldest = False
        """Whether the oldest instance is called, as may be after a restart of the kubelet."""
        self.registration_errors: dict[str, list[str]] = {}
        """Driver → errors with which its next registrations are rejected."""
        self.registrations: list[tuple[str, str]] = []
        """(driver, error) of every registration; an empty error means success."""
        self.health: HealthCache | None = None
        """What streams of health have said; None without the gate `ResourceHealthStatus`."""
        self._watches: dict[RegisteredPlugin, asyncio.Task[None]] = {}
        self._seen: dict[SocketID, RegisteredPlugin | None] = {}
        self._changed = asyncio.Condition()

    @property
    def plugins(self) -> Mapping[str, RegisteredPlugin]:
        """The instance of each driver that is called now."""
        return {
            driver: self._preferred(instances)
            for driver, instances in self.instances.items()
            if instances
        }

    def _preferred(self, instances: Sequence[RegisteredPlugin]) -> RegisteredPlugin:
        ordered = instances if self.prefers_oldest else instances[::-1]
        return next((each for each in ordered if each.is_connected), instances[-1])

    def plugin_dir(self, driver: str) -> Path:
        """The directory in which a driver must serve."""
        return self.root / "plugins" / driver

    async def wait_registered(self, driver: str, timeout_s: float = WAIT_S) -> RegisteredPlugin:
        """Wait until the driver is registered."""
        await self.wait_until(lambda: driver in self.plugins, timeout_s)
        return self.plugins[driver]

    async def wait_deregistered(self, driver: str, timeout_s: float = WAIT_S) -> None:
        """Wait until the driver is no longer registered."""
        await self.wait_until(lambda: driver not in self.plugins, timeout_s)

    async def wait_until(self, is_so: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait for a condition that registrations can change."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(is_so)

    async def restart(self) -> None:
        """Forget all registrations, as a kubelet restart does.

        Existing sockets are registered again.
        """
        await self.close()
        self.instances.clear()
        self._seen.clear()

    async def watch(self) -> None:
        """Keep registrations in agreement with the existing sockets until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                present = _sockets(self.registry_dir)
                for socket in self._seen.keys() - present:
                    await self._deregister(self._seen.pop(socket))
                for socket in sorted(present - self._seen.keys(), key=lambda each: each.created_ns):
                    await self._register(socket, group)
                async with self._changed:
                    self._changed.notify_all()
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Close all connections."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        for plugin in [each for instances in self.instances.values() for each in instances]:
            await plugin.channel.close()

    async def _register(self, socket: SocketID, watches: asyncio.TaskGroup) -> None:
        # The authority of the registration socket is its percent-encoded path, as for the kubelet.
        async with grpc.aio.insecure_channel(f"unix:{socket.path}") as channel:
            try:
                info = await _get_info(channel)
            except grpc.aio.AioRpcError:
                return  # it may not serve yet; the next poll tries again
            if socket not in _sockets(self.registry_dir):
                return  # a successor has answered at its path, and is registered by the next poll
            self._seen[socket] = None
            verdict = self._validate(info)
            self.registrations.append((info.name, verdict))
            if not verdict:
                plugin = self._seen[socket] = connect(
                    info.name, Path(info.endpoint), info.supported_versions
                )
                self.instances.setdefault(info.name, []).append(plugin)
                if self.health is not None:
                    watch = self.health.watch(plugin.driver, plugin.channel, plugin.services)
                    self._watches[plugin] = watches.create_task(watch)
            try:
                await _notify(channel, verdict)
            except grpc.aio.AioRpcError:
                await self._deregister(self._seen.get(socket))  # none after a restart meanwhile

    def _validate(self, info: reg.PluginInfo) -> str:
        """Why this plugin cannot be registered; empty if it can."""
        if self.registration_errors.get(info.name):
            return self.registration_errors[info.name].pop(0)
        if info.type != registration.PLUGIN_TYPE:
            return f"unknown plugin type {info.type!r}"
        if not Path(info.endpoint).is_relative_to(self.root):
            return f"endpoint {info.endpoint!r} is not below {self.root}"
        if not any(each in SUPPORTED for each in info.supported_versions):
            return f"none of {list(info.supported_versions)} is supported"
        known = self.instances.get(info.name, ())
        if any(each.endpoint == info.endpoint for each in known):
            return f"{info.name} is already registered at {info.endpoint}"
        return ""

    async def _deregister(self, plugin: RegisteredPlugin | None) -> None:
        if plugin is not None and plugin in self.instances.get(plugin.driver, ()):
            self.instances[plugin.driver].remove(plugin)
            if plugin in self._watches:
                self._watches.pop(plugin).cancel()
            await plugin.channel.close()


@asynccontextmanager
async def run_kubelet(root: Path) -> AsyncIterator[KubeletClient]:
    """Run a kubelet with its root directory at `root` until the block is left.

    The path of `root` must be short: socket paths have at most 107 bytes.
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
        return found  # it was removed
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            # Not the ctime: a change of the mode does not make a new socket.
            found.add(SocketID(path, status.st_ino, status.st_mtime_ns))
    return found


async def _get_info(channel: grpc.aio.Channel) -> reg.PluginInfo:
    method = f"/{registration.REGISTRATION_SERVICE}/GetInfo"
    return await grpc_calls.call(
        channel, method, reg.InfoRequest(), reg.PluginInfo, timeout_s=GET_INFO_S
    )


async def _notify(channel: grpc.aio.Channel, error: str) -> None:
    method = f"/{registration.REGISTRATION_SERVICE}/NotifyRegistrationStatus"
    status = reg.RegistrationStatus(plugin_registered=not error, error=error)
    await grpc_calls.call(
        channel, method, status, reg.RegistrationStatusResponse, timeout_s=NOTIFY_S
    )


def connect(
    driver: str, endpoint: Path, services: Sequence[str] = registration.SERVICES
) -> RegisteredPlugin:
    """Connect to a DRA socket, without a registration."""
    # grpc-go dials `unix:<path>` with the authority "localhost".
    options = [("grpc.default_authority", "localhost")]
    channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=options)
    return RegisteredPlugin(driver, str(endpoint), tuple(services), channel)


def _claim_messages(claims: Sequence[ClaimRef]) -> list[dra.Claim]:
    return [dra.Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]


def _check_response(claims: Sequence[ClaimRef], answers: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = {str(claim.uid) for claim in claims}
    if unknown := sorted(answers.keys() - asked):
        raise InvalidResponse(f"answers for claims that were not requested: {', '.join(unknown)}")
    if skipped := sorted(asked - answers.keys()):
        raise InvalidResponse(f"skipped {len(skipped)} ResourceClaims: {', '.join(skipped)}")
    return answers
