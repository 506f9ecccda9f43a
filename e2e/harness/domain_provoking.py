"""How each reason is brought about on a real compute-domain plugin; what a daemon can lack besides.

Beside `provoking`, which has the same table for the GPU plugin. Claims, pods and daemons are those
of `domain_rig`; one that has no nvidia-imex is the real one.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import domains
import plugin
import provoking
import small_disk
from domain_rig import DomainRig
from domains import Json
from imexd import Rack
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import Reason
from telling import CLAIM, JSON, NOBODY, Told, refused

SHORT_S = 3
"""For what is waited for until the time is up: half of it is kept for the answer."""
HOST_MANAGED = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")

A_BUG = """
from nvdra_cd_plugin import plan
from nvdra_cd_plugin.__main__ import main

def broken(*_, **__):
    raise ZeroDivisionError("division by zero")

plan.make = broken
main()
"""
"""The plugin with a mistake in it, for there is no known one."""

Provocation = Callable[[DomainRig], Awaitable[Told]]


class Lack(NamedTuple):
    """Something for want of which a node's daemon is not ready.

    Attributes:
        provocation: Brings it about; the workload's claim is what is refused.
        words: What the refusal says of it.
    """

    provocation: Provocation
    words: str


async def claim_uid_changed(rig: DomainRig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.channel(rig.domain())._replace(uid=NOBODY), CLAIM)


async def unknown_device(rig: DomainRig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.channel(rig.domain(), device="channel-1"))


async def device_in_use(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    await _prepared(rig, rig.daemon(domain))
    return await refused(rig, rig.daemon(domain), timeout_s=SHORT_S)


async def device_node_missing(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    await rig.form(domain)
    devices = rig.node.roots.proc / "devices"
    devices.write_text(devices.read_text().replace("nvidia-caps-imex-channels", "something"))
    return await refused(rig, rig.channel(domain))


async def driver_mismatch(rig: DomainRig) -> Told:
    library = next(rig.node.roots.driver.rglob("libnvidia-ml.so.1"))
    library.rename(library.with_name("hidden"))
    await _served(rig)
    return await refused(rig, rig.daemon(rig.domain()), timeout_s=SHORT_S)


async def invalid_config(rig: DomainRig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.channel(rig.domain(), parameters={"unexpectedField": "x"}))


async def lock_timeout(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    first, second = rig.channel(domain), rig.channel(domain)
    with _written_by_another(rig):
        being_recorded = rig.begin(first)
        await asyncio.sleep(0.5)  # until the first one is at the state file
        told = await refused(rig, second, timeout_s=SHORT_S)
    assert await rig.unprepare(first) == ""
    await being_recorded
    return told


async def state_corrupt(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    await _prepared(rig, rig.daemon(domain))
    await rig.end()
    with closing(sqlite3.connect(_state(rig))) as connection, connection:
        connection.execute("UPDATE records SET payload = '{'")
    await rig.start(JSON)
    return await refused(rig, rig.channel(domain))


async def state_unavailable(rig: DomainRig) -> Told:
    disk = rig.stack.enter_context(small_disk.mounted(rig.plugin_dir))
    await rig.start(JSON)
    claim = rig.channel(rig.domain())
    disk.fill()
    return await refused(rig, claim)


async def api_unavailable(rig: DomainRig) -> Told:
    await rig.start(JSON)
    claim = rig.channel(rig.domain())
    with rig.server.paused():
        return await refused(rig, claim, timeout_s=SHORT_S)


async def deadline_exceeded(rig: DomainRig) -> Told:
    rig.node.sim("slow", "60000", "--function", "nvmlInitWithFlags")
    await _served(rig)
    return await refused(rig, rig.daemon(rig.domain()), timeout_s=SHORT_S)


async def domain_not_found(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    gone = {"metadata": {**domain["metadata"], "uid": str(uuid4())}}
    return await refused(rig, rig.channel(gone))


async def namespace_mismatch(rig: DomainRig) -> Told:
    await rig.start(JSON)
    stranger = domains.namespace(rig.server)
    return await refused(rig, rig.channel(rig.domain(), namespace=stranger))


async def node_in_other_domain(rig: DomainRig) -> Told:
    await rig.start(JSON)
    first, second = rig.domain(), rig.domain()
    await rig.form(first)
    await _prepared(rig, rig.channel(first))
    return await refused(rig, rig.channel(second), timeout_s=SHORT_S)


async def not_a_daemon(rig: DomainRig) -> Told:
    await rig.start(JSON)
    return await refused(rig, rig.daemon(rig.domain(), ownerReferences=[]))


async def daemon_not_ready(rig: DomainRig) -> Told:
    await rig.start(JSON)
    return await _lacking(rig, rig.domain())


async def fabric_error(rig: DomainRig) -> Told:
    rig.node.sim("fabric", "all", "--fabric-state", "in_progress")
    await _served(rig)
    return await refused(rig, rig.channel(rig.domain()), timeout_s=SHORT_S)


async def imex_binary_missing(rig: DomainRig) -> Told:
    await rig.start(JSON, *HOST_MANAGED)
    for found in list(rig.node.roots.driver.rglob("nvidia-imex-ctl")):
        found.unlink()
    return await refused(rig, rig.channel(rig.domain()))


async def internal(rig: DomainRig) -> Told:
    await _served(rig, sys.executable, "-c", A_BUG)
    return await refused(rig, rig.channel(rig.domain()))


PROVOCATIONS: Mapping[Reason, Provocation] = MappingProxyType(
    {
        Reason.CLAIM_NOT_FOUND: provoking.claim_not_found,
        Reason.CLAIM_UID_CHANGED: claim_uid_changed,
        Reason.NOT_ALLOCATED: provoking.not_allocated,
        Reason.UNKNOWN_DEVICE: unknown_device,
        Reason.DEVICE_IN_USE: device_in_use,
        Reason.DEVICE_NODE_MISSING: device_node_missing,
        Reason.DRIVER_MISMATCH: driver_mismatch,
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


async def no_pod_can_be_made(rig: DomainRig) -> Told:
    """The API server takes no more pods in the driver's namespace."""
    await rig.start(JSON)
    domain = rig.domain()
    quota = "pods is forbidden: exceeded quota: few, used: pods=1, limited: pods=1"
    rig.pod_is_refused(rig.daemonset(domain), quota)
    return await _lacking(rig, domain)


async def nobody_makes_daemons(rig: DomainRig) -> Told:
    """There is no controller, or it works in another namespace."""
    await rig.start(JSON)
    return await _lacking(rig, rig.domain())


async def daemons_claim_is_refused(rig: DomainRig) -> Told:
    """What the daemon needs of the node is not there: its pod waits with its claim."""
    await rig.start(JSON)
    domain = rig.domain()
    rig.forbid_imex()
    answer = await rig.prepare(rig.daemon(domain))
    assert answer.error.startswith("DeviceNodeMissing: "), answer.error
    return await _lacking(rig, domain)


async def daemons_place_is_taken(rig: DomainRig) -> Told:
    """The daemon of a domain that was here before has not ended yet."""
    await rig.start(JSON)
    former, domain = rig.domain(), rig.domain()
    await _prepared(rig, rig.daemon(former))
    daemon = rig.daemon(domain)
    waiting = rig.begin(daemon)
    told = await _lacking(rig, domain)
    assert await rig.unprepare(daemon) == ""
    assert (await waiting).error.startswith("DeviceInUse: ")
    return told


async def no_node_fits(rig: DomainRig) -> Told:
    """The daemon's pod cannot be bound to the only node where it may go."""
    await rig.start(JSON)
    domain = rig.domain()
    pod = rig.daemon_pod(domain, spec={"nodeName": None, **domains.bound_for(rig.node.name)})
    rig.pod_says(pod, domains.no_node_fits("0/4 nodes are available: 1 Insufficient memory"))
    return await _lacking(rig, domain)


async def image_cannot_be_pulled(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    rig.pod_says(rig.daemon_pod(domain), domains.image_not_pulled("Back-off pulling image"))
    return await _lacking(rig, domain)


async def imex_is_not_installed(rig: DomainRig) -> Told:
    await rig.start(JSON)
    domain = rig.domain()
    rack = await _rack(rig, domain)
    await rig.soon(
        lambda: "ImexBinaryMissing" in _entry(rack, rig).get("message", ""), "the daemon's word"
    )
    return await _lacking(rig, domain)


async def peer_is_unreachable(rig: DomainRig) -> Told:
    """IMEX came back after a crash and waits for a peer that it was connected with."""
    await rig.start(JSON)
    domain = rig.domain()
    daemon = rig.daemon(domain)
    await _prepared(rig, daemon)
    words = "nvidia-imex says WAITING_FOR_QUORUM"
    rig.say(domain, "NotReady", podUID=rig.pod_of(daemon), message=words)
    rig.say(domain, "NotReady", node="node-z", index=1)
    return await _lacking(rig, domain)


LACKS: Mapping[str, Lack] = MappingProxyType(
    {
        "nobody makes daemons": Lack(nobody_makes_daemons, "there is no DaemonSet"),
        "no pod can be made": Lack(no_pod_can_be_made, "pods is forbidden: exceeded quota"),
        "the daemon's claim is refused": Lack(
            daemons_claim_is_refused, "is refused, DeviceNodeMissing: "
        ),
        "the daemon's place is taken": Lack(
            daemons_place_is_taken, "is refused, DeviceInUse: daemon-0 is held by claim"
        ),
        "no node fits": Lack(no_node_fits, "Unschedulable: 0/4 nodes are available"),
        "the daemon's image cannot be pulled": Lack(image_cannot_be_pulled, "ImagePullBackOff"),
        "nvidia-imex is not installed": Lack(imex_is_not_installed, "ImexBinaryMissing"),
        "a peer is unreachable": Lack(peer_is_unreachable, "WAITING_FOR_QUORUM"),
    }
)


async def _prepared(rig: DomainRig, claim: ClaimRef) -> None:
    answer = await rig.prepare(claim)
    assert not answer.error, answer.error


async def _lacking(rig: DomainRig, domain: Json) -> Told:
    return await refused(rig, rig.channel(domain), timeout_s=SHORT_S)


async def _served(rig: DomainRig, *program: str) -> None:
    await rig.serve(JSON, f"--namespace={rig.namespace}", program=program)


async def _rack(rig: DomainRig, domain: Json) -> Rack:
    """The real daemon of the domain on this node, which has no nvidia-imex."""
    claim = rig.daemon(domain)
    await _prepared(rig, claim)
    found = rig.server.call("GET", f"{plugin.claims_path(claim.namespace)}/{claim.name}")
    (pod,) = found["status"]["reservedFor"]
    directory = rig.node.kubelet.parent / "rack"
    directory.mkdir()
    rack = Rack(rig.server, directory, domain, rig.namespace, rig.stack, clique_id=rig.clique)
    rack.run(rig.node.name, pod["name"], pod["uid"], clique=rig.clique)
    return rack


def _entry(rack: Rack, rig: DomainRig) -> dict[str, Any]:
    return rack.entries().get(rig.node.name, {})


@contextmanager
def _written_by_another(rig: DomainRig) -> Iterator[None]:
    """Somebody keeps the state file to himself: the plugin's own writes have to wait."""
    with closing(sqlite3.connect(_state(rig), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def _state(rig: DomainRig) -> str:
    return str(rig.plugin_dir / "state.sqlite")
