# SPDX-License-Identifier: Apache-2.0
"""Two instances of a plugin on one node, as in a rollout, under load at their sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import grpc
from nvdra_api.resource.claims import ClaimRef

from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rig import Rig

CreateClaim = Callable[[], ClaimRef]


@dataclass
class Load:
    """Claims that are prepared and unprepared all the time.

    Attributes:
        failures: Every answer that was no success, with the socket that was called.
        cancelled: The calls that gRPC cancelled because they arrived while the server of a socket
            was stopping (https://github.com/grpc/grpc/issues/41785). They are repeated, as a
            kubelet does. Only a kubelet that prefers the oldest instance makes such calls.
        count: The claims that were prepared and unprepared.
        slowest_s: The longest call.
    """

    rig: Rig
    failures: list[str] = field(default_factory=list)
    cancelled: int = 0
    count: int = 0
    slowest_s: float = 0.0
    is_ending: bool = False

    async def run(self, create: CreateClaim) -> None:
        """Prepare and unprepare claims, one after the other, until the load ends."""
        while not self.is_ending:
            claim = await asyncio.to_thread(create)
            await self._call("prepare", claim)
            await self._call("unprepare", claim)
            self.count += 1
            await asyncio.to_thread(self.rig.delete_claim, claim)

    async def _call(self, method: str, claim: ClaimRef) -> None:
        dra = self.rig.kubelet.plugins[self.rig.driver]
        began = asyncio.get_running_loop().time()
        try:
            error = (await getattr(dra, method)([claim]))[claim.uid].error
        except grpc.aio.AioRpcError as failure:
            is_cancelled = failure.code() is grpc.StatusCode.CANCELLED
            if is_cancelled and self.rig.kubelet.prefers_oldest:
                self.cancelled += 1
                await self._call(method, claim)
                return
            error = f"{failure.code()} {failure.details()}"
        self.slowest_s = max(self.slowest_s, asyncio.get_running_loop().time() - began)
        if error:
            self.failures.append(f"{method} {claim.name} by {dra.endpoint}: {error}")


@asynccontextmanager
async def load(rig: Rig, creators: Sequence[CreateClaim]) -> AsyncIterator[Load]:
    """Prepare and unprepare the claims of each creator while the block runs."""
    running = Load(rig)
    async with asyncio.TaskGroup() as group:
        for create in creators:
            group.create_task(running.run(create))
        try:
            yield running
        finally:
            running.is_ending = True


def launch_next(rig: Rig, *flags: str, **how: Any) -> PluginProcess:
    """Start another instance, as the pod of a rollout."""
    uid = str(uuid4())
    return rig.launch(f"--pod-name=next-{uid[:4]}", *flags, environ={"POD_UID": uid}, **how)


async def start_next(rig: Rig, *flags: str) -> PluginProcess:
    """Start another instance, and wait until it is registered and ready."""
    count = len(rig.kubelet.instances[rig.driver])
    process = launch_next(rig, *flags)
    await rig.kubelet.wait_until(
        lambda: len(rig.kubelet.instances[rig.driver]) == count + 1, plugin.START_S
    )
    await wait_ready(rig, process)
    newest = rig.kubelet.instances[rig.driver][-1]
    await rig.kubelet.wait_until(lambda: newest.is_connected)
    return process


async def wait_ready(rig: Rig, process: PluginProcess) -> None:
    """Wait until an instance is ready."""
    await rig.wait_until(lambda: process.get("/readyz")[0] == 200, "the next one to be ready")


async def wait_takeover(rig: Rig, process: PluginProcess) -> None:
    """Wait until an instance that stood by is active; it is the rig's process from then on."""
    rig.process = process
    await rig.wait_until(
        lambda: "This instance has taken over" in process.log.read_text(), "the takeover"
    )


def set_kubelet_version(rig: Rig, version: str) -> None:
    """Let the Node say that its kubelet has another version."""
    path = f"/api/v1/nodes/{rig.node.name}"
    node = rig.server.request("GET", path)
    node["status"]["nodeInfo"]["kubeletVersion"] = version
    rig.server.request("PUT", f"{path}/status", node)
