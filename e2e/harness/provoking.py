"""How each reason is brought about on a real plugin: the table that the driver's code is held to.

A reason that the code can raise and nobody provokes here fails a unit test; the component test
`test_a_reason_is_told_five_times` provokes each and reads the five places.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from types import MappingProxyType

import plugin
import small_disk
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import ClaimUID
from rig import Rig
from telling import CLAIM, JSON, NOBODY, Told, refused

HANG = ("slow", "-1", "--function", "nvmlDevice*", "--gpu")

SHARING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing"},
}
TYPO = {**SHARING, "sharing": {"strategy": "TimeSlicing", "interval": "Long"}}

A_BUG = """
from nvdra_gpu_plugin import plan
from nvdra_gpu_plugin.__main__ import main

def broken(*_):
    raise ZeroDivisionError("division by zero")

plan.make = broken
main()
"""
"""The plugin with a mistake in it, for there is no known one."""


Provocation = Callable[[Rig], Awaitable[Told]]


async def claim_not_found(rig: Rig) -> Told:
    await rig.start(JSON)
    return await refused(rig, ClaimRef("default", "gone", NOBODY), CLAIM)


async def claim_uid_changed(rig: Rig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.claim("gpu-0")._replace(uid=NOBODY), CLAIM)


async def not_allocated(rig: Rig) -> Told:
    await rig.start(JSON)
    requests = [{"name": "g", "exactly": {"deviceClassName": rig.driver}}]
    created = rig.server.create(
        plugin.CLAIMS,
        {"metadata": {"generateName": "new-"}, "spec": {"devices": {"requests": requests}}},
    )["metadata"]
    claim = ClaimRef("default", created["name"], ClaimUID(created["uid"]))
    return await refused(rig, claim, CLAIM)  # without an allocation no pod is in reservedFor


async def unknown_device(rig: Rig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.claim("gpu-77"))


async def device_in_use(rig: Rig) -> Told:
    await rig.start(JSON)
    await rig.dra.prepare([rig.claim("gpu-0")])
    return await refused(rig, rig.claim("gpu-0"), timeout_s=3)


async def device_unhealthy(rig: Rig) -> Told:
    await rig.start(JSON)
    rig.node.sim("gpu", "lose", "3")
    return await refused(rig, rig.claim("gpu-3"))


async def device_node_missing(rig: Rig) -> Told:
    await rig.start(JSON)
    (rig.node.roots.dev / "nvidia1").unlink()
    return await refused(rig, rig.claim("gpu-1"))


async def driver_mismatch(rig: Rig) -> Told:
    library = next(rig.node.roots.driver.glob("usr/lib/*/libnvidia-ml.so.1"))
    library.rename(library.with_name("hidden"))
    await rig.serve(JSON)
    return await refused(rig, rig.claim("gpu-0"))


async def invalid_config(rig: Rig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.claim("gpu-0", config=[plugin.opaque(TYPO)]))


async def feature_gate_disabled(rig: Rig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.claim("gpu-0", config=[plugin.opaque(SHARING)]))


async def lock_timeout(rig: Rig) -> Told:
    await rig.start(JSON)
    rig.node.sim(*HANG, "1")
    first, second = rig.claim("gpu-1"), rig.claim("gpu-1")
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.dra.prepare([first], timeout_s=7))
        await rig.until(lambda: bool(rig.spans(first, "resolve config")), "it to be at the board")
        return await refused(rig, second, timeout_s=4)


async def state_corrupt(rig: Rig) -> Told:
    await rig.start(JSON)
    broken = rig.claim("gpu-0")
    await rig.dra.prepare([broken])
    rig.process.stop()
    await rig.kubelet.gone(plugin.DRIVER)
    path = rig.node.kubelet / "plugins" / plugin.DRIVER / "state.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE records SET payload = '{'")
    await rig.start(JSON)
    return await refused(rig, rig.claim("gpu-2"))


async def state_unavailable(rig: Rig) -> Told:
    disk = rig.stack.enter_context(small_disk.mounted(rig.plugin_dir))
    await rig.start(JSON)
    claim = rig.claim("gpu-2")
    disk.fill()
    return await refused(rig, claim)


async def api_unavailable(rig: Rig) -> Told:
    await rig.start(JSON)
    claim = rig.claim("gpu-0")
    with rig.server.paused():
        return await refused(rig, claim, timeout_s=4)


async def deadline_exceeded(rig: Rig) -> Told:
    await rig.start(JSON)
    rig.node.sim(*HANG, "1")
    return await refused(rig, rig.claim("gpu-1"), timeout_s=4)


async def internal(rig: Rig) -> Told:
    await rig.serve(JSON, program=(sys.executable, "-c", A_BUG))
    await rig.until(lambda: bool(rig.devices()), "the slices")
    return await refused(rig, rig.claim("gpu-0"))


PROVOCATIONS: Mapping[Reason, Provocation] = MappingProxyType(
    {
        Reason.CLAIM_NOT_FOUND: claim_not_found,
        Reason.CLAIM_UID_CHANGED: claim_uid_changed,
        Reason.NOT_ALLOCATED: not_allocated,
        Reason.UNKNOWN_DEVICE: unknown_device,
        Reason.DEVICE_IN_USE: device_in_use,
        Reason.DEVICE_UNHEALTHY: device_unhealthy,
        Reason.DEVICE_NODE_MISSING: device_node_missing,
        Reason.DRIVER_MISMATCH: driver_mismatch,
        Reason.INVALID_CONFIG: invalid_config,
        Reason.FEATURE_GATE_DISABLED: feature_gate_disabled,
        Reason.LOCK_TIMEOUT: lock_timeout,
        Reason.STATE_CORRUPT: state_corrupt,
        Reason.STATE_UNAVAILABLE: state_unavailable,
        Reason.API_UNAVAILABLE: api_unavailable,
        Reason.DEADLINE_EXCEEDED: deadline_exceeded,
        Reason.INTERNAL: internal,
    }
)
