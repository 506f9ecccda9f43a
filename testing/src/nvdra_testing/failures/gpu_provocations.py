# SPDX-License-Identifier: Apache-2.0
"""Provokes each failure reason of the GPU plugin.

A unit test fails if the code can raise a reason that is not provoked here. A component test
provokes each reason and checks the five places where it is reported.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from types import MappingProxyType

from nvdra_api.errors import Reason
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_testing.failures.reported_failures import (
    CLAIM_ONLY,
    JSON_LOGS,
    UNKNOWN_UID,
    ReportedFailure,
    prepare_failing_claim,
)
from nvdra_testing.faults import small_disk
from nvdra_testing.node import device_holders, mps_pods, plugin
from nvdra_testing.node.mps_pods import MpsPods
from nvdra_testing.node.passthrough_rig import PassthroughRig
from nvdra_testing.node.rig import Rig

HANG_FLAGS = ("slow", "-1", "--function", "nvmlDevice*", "--gpu")

INVALID_SHARING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "interval": "Long"},
}
SHARED_BY_TIME = {**INVALID_SHARING, "sharing": {"strategy": "TimeSlicing"}}

BUGGY_PLUGIN = """
from nvdra_gpu_plugin.claims import plan
from nvdra_gpu_plugin.__main__ import main

def broken(*_):
    raise ZeroDivisionError("division by zero")

plan.make = broken
main()
"""
"""The plugin with a bug, because there is no known one."""


Provocation = Callable[[Rig], Awaitable[ReportedFailure]]
VfioProvocation = Callable[[PassthroughRig], Awaitable[ReportedFailure]]


async def claim_not_found(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(rig, ClaimRef("default", "gone", UNKNOWN_UID), CLAIM_ONLY)


async def claim_uid_changed(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_claim("gpu-0")._replace(uid=UNKNOWN_UID), CLAIM_ONLY
    )


async def not_allocated(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    requests = [{"name": "g", "exactly": {"deviceClassName": rig.driver}}]
    created = rig.server.create(
        plugin.CLAIMS,
        {"metadata": {"generateName": "new-"}, "spec": {"devices": {"requests": requests}}},
    )["metadata"]
    claim = ClaimRef("default", created["name"], ClaimUID(created["uid"]))
    return await prepare_failing_claim(
        rig, claim, CLAIM_ONLY
    )  # without an allocation no pod is in reservedFor


async def unknown_device(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(rig, rig.create_claim("gpu-77"))


async def device_in_use(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    await rig.dra.prepare([rig.create_claim("gpu-0")])
    return await prepare_failing_claim(rig, rig.create_claim("gpu-0"), timeout_s=4)


async def device_unhealthy(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    rig.node.simctl("gpu", "lose", "3")
    return await prepare_failing_claim(rig, rig.create_claim("gpu-3"))


async def mig_mode_requires_reset(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS, "--feature-gates=DynamicMIG=true")
    rule = ("nvmlDeviceSetMigMode", "--activation-status", "RESET_REQUIRED")
    rig.node.simctl("fault", "add", *rule)
    return await prepare_failing_claim(rig, rig.create_claim("gpu-0-mig-1g10gb-19-0"))


async def device_node_missing(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    (rig.node.roots.dev / "nvidia1").unlink()
    return await prepare_failing_claim(rig, rig.create_claim("gpu-1"))


async def driver_mismatch(rig: Rig) -> ReportedFailure:
    library = next(rig.node.roots.driver.glob("usr/lib/*/libnvidia-ml.so.1"))
    library.rename(library.with_name("hidden"))
    await rig.start_without_ready(JSON_LOGS)
    return await prepare_failing_claim(rig, rig.create_claim("gpu-0"))


async def nvml_released(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    rig.command("release")
    return await prepare_failing_claim(rig, rig.create_claim("gpu-0"), timeout_s=4)


async def mps_not_ready(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS, "--feature-gates=MPSSupport=true", *mps_pods.FLAGS)
    rig.stack.callback(
        MpsPods(rig.server, rig.node).remove_all
    )  # nothing runs the Deployment, and nobody ends it
    config = {**SHARED_BY_TIME, "sharing": {"strategy": "MPS"}}
    claim = rig.create_claim("gpu-0", config=[plugin.opaque_config(config)])
    return await prepare_failing_claim(rig, claim, timeout_s=4)


async def invalid_config(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_claim("gpu-0", config=[plugin.opaque_config(INVALID_SHARING)])
    )


async def feature_gate_disabled(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_claim("gpu-0", config=[plugin.opaque_config(SHARED_BY_TIME)])
    )


async def lock_timeout(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    rig.node.simctl(*HANG_FLAGS, "1")
    first, second = rig.create_claim("gpu-1"), rig.create_claim("gpu-1")
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.dra.prepare([first], timeout_s=7))
        await rig.wait_until(
            lambda: bool(rig.spans(first, "resolve config")), "it to be at the board"
        )
        return await prepare_failing_claim(rig, second, timeout_s=4)


async def state_corrupt(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    broken = rig.create_claim("gpu-0")
    await rig.dra.prepare([broken])
    rig.process.stop()
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    path = rig.node.kubelet / "plugins" / plugin.DRIVER / "state.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE records SET payload = '{'")
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(rig, rig.create_claim("gpu-2"))


async def state_unavailable(rig: Rig) -> ReportedFailure:
    disk = rig.stack.enter_context(small_disk.mount_small_disk(rig.plugin_dir))
    await rig.start(JSON_LOGS)
    claim = rig.create_claim("gpu-2")
    disk.fill()
    return await prepare_failing_claim(rig, claim)


async def api_unavailable(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    claim = rig.create_claim("gpu-0")
    with rig.server.paused():
        return await prepare_failing_claim(rig, claim, timeout_s=4, has_api_server=False)


async def deadline_exceeded(rig: Rig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    rig.node.simctl(*HANG_FLAGS, "1")
    return await prepare_failing_claim(rig, rig.create_claim("gpu-1"), timeout_s=4)


async def internal(rig: Rig) -> ReportedFailure:
    await rig.start_without_ready(JSON_LOGS, program=(sys.executable, "-c", BUGGY_PLUGIN))
    await rig.wait_until(lambda: bool(rig.devices()), "the slices")
    return await prepare_failing_claim(rig, rig.create_claim("gpu-0"))


async def vfio_not_possible(rig: PassthroughRig) -> ReportedFailure:
    """The rig's GPUs 2 and 3 share an IOMMU group."""
    await rig.start_passing(JSON_LOGS)
    return await prepare_failing_claim(rig, rig.create_claim("gpu-vfio-2"))


async def vfio_device_busy(rig: PassthroughRig) -> ReportedFailure:
    await rig.start_passing(JSON_LOGS)
    with device_holders.opened(rig.served.roots.dev / "nvidia1"):
        return await prepare_failing_claim(rig, rig.create_claim("gpu-vfio-1"))


async def vfio_bind_failed(rig: PassthroughRig) -> ReportedFailure:
    await rig.start_passing(JSON_LOGS)
    fault = ("fault", rig.served.address(1), "--driver=vfio-pci", "--bind-error=EIO")
    rig.node.simctl("pci", *fault)
    return await prepare_failing_claim(rig, rig.create_claim("gpu-vfio-1"))


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
        Reason.MIG_MODE_REQUIRES_RESET: mig_mode_requires_reset,
        Reason.NVML_RELEASED: nvml_released,
        Reason.MPS_NOT_READY: mps_not_ready,
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

VFIO_PROVOCATIONS: Mapping[Reason, VfioProvocation] = MappingProxyType(
    {
        Reason.VFIO_NOT_POSSIBLE: vfio_not_possible,
        Reason.VFIO_DEVICE_BUSY: vfio_device_busy,
        Reason.VFIO_BIND_FAILED: vfio_bind_failed,
    }
)
"""Those of GPUs for virtual machines, on a node whose sysfs is served and of whose boards two are
behind one switch (`passthrough_fixtures.PAIR_BEHIND_A_SWITCH`)."""
