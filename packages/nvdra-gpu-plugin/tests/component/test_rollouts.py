"""Two instances of the plugin on one node: one is active, the other stands by and takes over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import grpc
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rig import Rig

GPUS = 8


@dataclass
class Load:
    """Claims that are prepared and unprepared all the time, eight at once.

    Attributes:
        failures: Every answer that was no success.
        count: The claims that were prepared and unprepared.
    """

    rig: Rig
    failures: list[str] = field(default_factory=list)
    count: int = 0

    async def run_on(self, device: str) -> None:
        """Prepare and unprepare claims of one GPU, one after the other, until cancelled."""
        while True:
            claim = await asyncio.to_thread(self.rig.create_claim, device)
            for method in ("prepare", "unprepare"):
                dra = self.rig.kubelet.plugins[self.rig.driver]
                try:
                    answer = (await getattr(dra, method)([claim]))[claim.uid]
                except grpc.aio.AioRpcError as error:
                    self.failures.append(f"{method} {dra.endpoint}: {error!r}")
                else:
                    if answer.error:
                        self.failures.append(f"{method} {dra.endpoint}: {answer.error}")
            self.count += 1
            await asyncio.to_thread(self.rig.delete_claim, claim)


@asynccontextmanager
async def load(rig: Rig) -> AsyncIterator[Load]:
    """Load on every GPU of the node while the block runs, and until its last calls have ended."""
    running = Load(rig)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(running.run_on(f"gpu-{minor}")) for minor in range(GPUS)]
        yield running
        for task in tasks:
            task.cancel()


def launch_next(rig: Rig, *flags: str) -> PluginProcess:
    """Start another instance, as the pod of a rollout."""
    uid = str(uuid4())
    return rig.launch(f"--pod-name=next-{uid[:4]}", *flags, environ={"POD_UID": uid})


async def wait_standing_by(rig: Rig, process: PluginProcess, instances: int = 2) -> None:
    await rig.kubelet.wait_until(
        lambda: len(rig.kubelet.instances[rig.driver]) == instances, plugin.START_S
    )
    await rig.wait_until(lambda: process.get("/readyz")[0] == 200, "the next one to be ready")


def writers(rig: Rig) -> set[tuple[str, str]]:
    return {(s["metadata"]["uid"], s["metadata"]["resourceVersion"]) for s in rig.slices()}


async def test_no_call_fails_while_an_instance_is_replaced_under_load(rig: Rig) -> None:
    await rig.start("--pod-name=the-first")
    published = writers(rig)
    async with load(rig) as running:
        await asyncio.sleep(1)
        second = launch_next(rig)
        await wait_standing_by(rig, second)
        assert "standing by" in second.get("/readyz?verbose")[1]
        await asyncio.sleep(1)
        before = running.count
        assert await asyncio.to_thread(rig.process.stop) == 0
        rig.process = second
        await rig.wait_until(lambda: "This instance has taken over" in second.log.read_text(), "it")
        await asyncio.sleep(2)
        assert running.count > before + GPUS
    assert running.failures == []
    assert writers(rig) == published
    assert len(rig.kubelet.instances[rig.driver]) == 1
