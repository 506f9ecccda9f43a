# SPDX-License-Identifier: Apache-2.0
"""Provokes each failure reason of the ComputeDomain plugin, and each cause of a daemon not ready.

`gpu_provocations` does the same for the GPU plugin. Claims, pods and daemons are those of
`domain_rig`; the daemon without nvidia-imex is a real one.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

from nvdra_api.errors import Reason
from nvdra_api.resource.claims import ClaimRef

from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.failures import gpu_provocations
from nvdra_testing.failures.reported_failures import (
    CLAIM_ONLY,
    JSON_LOGS,
    UNKNOWN_UID,
    ReportedFailure,
    prepare_failing_claim,
)
from nvdra_testing.faults import nvml_releases, small_disk
from nvdra_testing.node import plugin
from nvdra_testing.node.domain_rig import DomainRig
from nvdra_testing.node.imex_daemons import Rack

SHORT_S = 3
"""The timeout of prepares that wait until it ends; half of it is kept for the answer."""
HOST_MANAGED = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")

BUGGY_PLUGIN = """
from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.__main__ import main

def broken(*_, **__):
    raise ZeroDivisionError("division by zero")

plan.make = broken
main()
"""
"""The plugin with a bug, because there is no known one."""

Provocation = Callable[[DomainRig], Awaitable[ReportedFailure]]


class NotReadyCause(NamedTuple):
    """A cause for which the daemon of a node is not ready.

    Attributes:
        provocation: Provokes it; the prepare of the workload's claim fails.
        message: What the error says about the cause.
    """

    provocation: Provocation
    message: str


async def claim_uid_changed(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain())._replace(uid=UNKNOWN_UID), CLAIM_ONLY
    )


async def unknown_device(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain(), device="channel-1")
    )


async def device_in_use(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    await _prepare(rig, rig.create_daemon_claim(domain))
    return await prepare_failing_claim(rig, rig.create_daemon_claim(domain), timeout_s=SHORT_S)


async def device_node_missing(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    devices = rig.node.roots.proc / "devices"
    devices.write_text(devices.read_text().replace("nvidia-caps-imex-channels", "something"))
    return await prepare_failing_claim(rig, rig.create_channel_claim(domain))


async def driver_mismatch(rig: DomainRig) -> ReportedFailure:
    library = next(rig.node.roots.driver.rglob("libnvidia-ml.so.1"))
    library.rename(library.with_name("hidden"))
    await _start(rig)
    return await prepare_failing_claim(
        rig, rig.create_daemon_claim(rig.create_domain()), timeout_s=SHORT_S
    )


async def invalid_config(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain(), parameters={"unexpectedField": "x"})
    )


async def lock_timeout(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    first, second = rig.create_channel_claim(domain), rig.create_channel_claim(domain)
    with _locked_state_file(rig):
        being_recorded = rig.start_prepare(first)
        await asyncio.sleep(0.5)  # until the first one waits for the state file
        told = await prepare_failing_claim(rig, second, timeout_s=SHORT_S)
    assert await rig.unprepare(first) == ""
    await being_recorded
    return told


async def state_corrupt(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    await _prepare(rig, rig.create_daemon_claim(domain))
    await rig.stop()
    with closing(sqlite3.connect(_state_file(rig))) as connection, connection:
        connection.execute("UPDATE records SET payload = '{'")
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(rig, rig.create_channel_claim(domain))


async def state_unavailable(rig: DomainRig) -> ReportedFailure:
    disk = rig.stack.enter_context(small_disk.mount_small_disk(rig.plugin_dir))
    await rig.start(JSON_LOGS)
    claim = rig.create_channel_claim(rig.create_domain())
    disk.fill()
    return await prepare_failing_claim(rig, claim)


async def api_unavailable(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    claim = rig.create_channel_claim(rig.create_domain())
    with rig.server.paused():
        return await prepare_failing_claim(rig, claim, timeout_s=4, has_api_server=False)


async def deadline_exceeded(rig: DomainRig) -> ReportedFailure:
    rig.node.simctl("slow", "60000", "--function", "nvmlInitWithFlags")
    await _start(rig)
    return await prepare_failing_claim(
        rig, rig.create_daemon_claim(rig.create_domain()), timeout_s=SHORT_S
    )


async def domain_not_found(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    gone = {"metadata": {**domain["metadata"], "uid": str(uuid4())}}
    return await prepare_failing_claim(rig, rig.create_channel_claim(gone))


async def namespace_mismatch(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    stranger = domain_objects.create_namespace(rig.server)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain(), namespace=stranger)
    )


async def node_in_other_domain(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    first, second = rig.create_domain(), rig.create_domain()
    await rig.make_daemon_ready(first)
    await _prepare(rig, rig.create_channel_claim(first))
    return await prepare_failing_claim(rig, rig.create_channel_claim(second), timeout_s=SHORT_S)


async def not_a_daemon(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await prepare_failing_claim(
        rig, rig.create_daemon_claim(rig.create_domain(), ownerReferences=[])
    )


async def daemon_not_ready(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    return await _prepare_channel(rig, rig.create_domain())


async def fabric_error(rig: DomainRig) -> ReportedFailure:
    rig.node.simctl("fabric", "all", "--fabric-state", "in_progress")
    await _start(rig)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain()), timeout_s=SHORT_S
    )


async def device_unhealthy(rig: DomainRig) -> ReportedFailure:
    for index in range(4):
        rig.node.simctl("gpu", "lose", str(index))
    await _start(rig)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain()), timeout_s=SHORT_S
    )


async def nvml_released(rig: DomainRig) -> ReportedFailure:
    nvml_releases.release(rig)
    await _start(rig)
    return await prepare_failing_claim(
        rig, rig.create_channel_claim(rig.create_domain()), timeout_s=SHORT_S
    )


async def imex_binary_missing(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS, *HOST_MANAGED)
    for found in list(rig.node.roots.driver.rglob("nvidia-imex-ctl")):
        found.unlink()
    return await prepare_failing_claim(rig, rig.create_channel_claim(rig.create_domain()))


async def internal(rig: DomainRig) -> ReportedFailure:
    await _start(rig, sys.executable, "-c", BUGGY_PLUGIN)
    return await prepare_failing_claim(rig, rig.create_channel_claim(rig.create_domain()))


PROVOCATIONS: Mapping[Reason, Provocation] = MappingProxyType(
    {
        Reason.CLAIM_NOT_FOUND: gpu_provocations.claim_not_found,
        Reason.CLAIM_UID_CHANGED: claim_uid_changed,
        Reason.NOT_ALLOCATED: gpu_provocations.not_allocated,
        Reason.UNKNOWN_DEVICE: unknown_device,
        Reason.DEVICE_IN_USE: device_in_use,
        Reason.DEVICE_UNHEALTHY: device_unhealthy,
        Reason.DEVICE_NODE_MISSING: device_node_missing,
        Reason.DRIVER_MISMATCH: driver_mismatch,
        Reason.NVML_RELEASED: nvml_released,
        Reason.INVALID_CONFIG: invalid_config,
        Reason.LOCK_TIMEOUT: lock_timeout,
        Reason.STATE_CORRUPT: state_corrupt,
        Reason.STATE_UNAVAILABLE: state_unavailable,
        Reason.API_UNAVAILABLE: api_unavailable,
        Reason.DEADLINE_EXCEEDED: deadline_exceeded,
        Reason.DOMAIN_NOT_FOUND: domain_not_found,
        Reason.NAMESPACE_MISMATCH: namespace_mismatch,
        Reason.NODE_IN_OTHER_DOMAIN: node_in_other_domain,
        Reason.NOT_A_DAEMON: not_a_daemon,
        Reason.DAEMON_NOT_READY: daemon_not_ready,
        Reason.FABRIC_ERROR: fabric_error,
        Reason.IMEX_BINARY_MISSING: imex_binary_missing,
        Reason.INTERNAL: internal,
    }
)


async def pod_creation_forbidden(rig: DomainRig) -> ReportedFailure:
    """The API server rejects further pods in the driver's namespace."""
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    quota = "pods is forbidden: exceeded quota: few, used: pods=1, limited: pods=1"
    rig.write_failed_create_event(rig.create_daemonset(domain), quota)
    return await _prepare_channel(rig, domain)


async def no_daemonset(rig: DomainRig) -> ReportedFailure:
    """There is no controller, or it works in another namespace."""
    await rig.start(JSON_LOGS)
    return await _prepare_channel(rig, rig.create_domain())


async def daemon_claim_fails(rig: DomainRig) -> ReportedFailure:
    """A device of the node that the daemon needs is missing.

    So the daemon's pod waits for its claim.
    """
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    rig.remove_imex_capability()
    answer = await rig.prepare(rig.create_daemon_claim(domain))
    assert answer.error.startswith("DeviceNodeMissing: "), answer.error
    return await _prepare_channel(rig, domain)


async def daemon_device_in_use(rig: DomainRig) -> ReportedFailure:
    """The daemon of an earlier domain on the node has not ended yet."""
    await rig.start(JSON_LOGS)
    former, domain = rig.create_domain(), rig.create_domain()
    await _prepare(rig, rig.create_daemon_claim(former))
    daemon = rig.create_daemon_claim(domain)
    waiting = rig.start_prepare(daemon)
    told = await _prepare_channel(rig, domain)
    assert await rig.unprepare(daemon) == ""
    assert (await waiting).error.startswith("DeviceInUse: ")
    return told


async def pod_unschedulable(rig: DomainRig) -> ReportedFailure:
    """The daemon's pod cannot be scheduled to its node."""
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    pod = rig.create_daemon_pod(
        domain, spec={"nodeName": None, **domain_objects.daemonset_pod_spec(rig.node.name)}
    )
    rig.write_pod_status(
        pod,
        domain_objects.unschedulable_pod_status("0/4 nodes are available: 1 Insufficient memory"),
    )
    return await _prepare_channel(rig, domain)


async def image_pull_fails(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    rig.write_pod_status(
        rig.create_daemon_pod(domain),
        domain_objects.image_pull_backoff_status("Back-off pulling image"),
    )
    return await _prepare_channel(rig, domain)


async def imex_not_installed(rig: DomainRig) -> ReportedFailure:
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    rack = await _run_real_daemon(rig, domain)
    await rig.poll_until(
        lambda: "ImexBinaryMissing" in _clique_entry(rack, rig).get("message", ""),
        "the daemon's word",
    )
    return await _prepare_channel(rig, domain)


async def peer_unreachable(rig: DomainRig) -> ReportedFailure:
    """After a crash, IMEX waits for a peer that it was connected to."""
    await rig.start(JSON_LOGS)
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    await _prepare(rig, daemon)
    words = "nvidia-imex says WAITING_FOR_RECOVERY"
    rig.write_clique_entry(domain, "NotReady", podUID=rig.pod_uid(daemon), message=words)
    rig.write_clique_entry(domain, "NotReady", node="node-z", index=1)
    return await _prepare_channel(rig, domain)


NOT_READY_CAUSES: Mapping[str, NotReadyCause] = MappingProxyType(
    {
        "nobody makes daemons": NotReadyCause(no_daemonset, "there is no DaemonSet"),
        "no pod can be made": NotReadyCause(
            pod_creation_forbidden, "pods is forbidden: exceeded quota"
        ),
        "the daemon's claim is refused": NotReadyCause(
            daemon_claim_fails, "is refused, DeviceNodeMissing: "
        ),
        "the daemon's place is taken": NotReadyCause(
            daemon_device_in_use, "is refused, DeviceInUse: daemon-0 is held by a claim"
        ),
        "no node fits": NotReadyCause(pod_unschedulable, "Unschedulable: 0/4 nodes are available"),
        "the daemon's image cannot be pulled": NotReadyCause(image_pull_fails, "ImagePullBackOff"),
        "nvidia-imex is not installed": NotReadyCause(imex_not_installed, "ImexBinaryMissing"),
        "a peer is unreachable": NotReadyCause(peer_unreachable, "WAITING_FOR_RECOVERY"),
    }
)


async def _prepare(rig: DomainRig, claim: ClaimRef) -> None:
    answer = await rig.prepare(claim)
    assert not answer.error, answer.error


async def _prepare_channel(rig: DomainRig, domain: Json) -> ReportedFailure:
    return await prepare_failing_claim(rig, rig.create_channel_claim(domain), timeout_s=SHORT_S)


async def _start(rig: DomainRig, *program: str) -> None:
    await rig.start_without_ready(JSON_LOGS, f"--namespace={rig.namespace}", program=program)


async def _run_real_daemon(rig: DomainRig, domain: Json) -> Rack:
    """Run a real daemon of the domain on this node, which has no nvidia-imex."""
    claim = rig.create_daemon_claim(domain)
    await _prepare(rig, claim)
    found = rig.server.request("GET", f"{plugin.claims_path(claim.namespace)}/{claim.name}")
    (pod,) = found["status"]["reservedFor"]
    directory = rig.node.kubelet.parent / "rack"
    directory.mkdir()
    rack = Rack(rig.server, directory, domain, rig.namespace, rig.stack, clique_id=rig.clique)
    rack.run_daemon(rig.node.name, pod["name"], pod["uid"], clique=rig.clique)
    return rack


def _clique_entry(rack: Rack, rig: DomainRig) -> dict[str, Any]:
    return rack.entries().get(rig.node.name, {})


@contextmanager
def _locked_state_file(rig: DomainRig) -> Iterator[None]:
    """Lock the state file, so that the plugin's writes have to wait."""
    with closing(sqlite3.connect(_state_file(rig), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def _state_file(rig: DomainRig) -> str:
    return str(rig.plugin_dir / "state.sqlite")
