# SPDX-License-Identifier: Apache-2.0
"""What must be true of the node of an IMEX daemon, at any time and after a recovery.

All functions block.
"""

import json
import signal
from typing import Final

from nvdra_api import names
from nvdra_runtime.computedomain import ready_lock

from nvdra_testing.control_plane.domain_objects import CLIQUE
from nvdra_testing.crash_campaigns.daemon_sandbox import SUBJECT, DaemonSandbox
from nvdra_testing.node.daemon_containers import IMEXD
from nvdra_testing.node.imex_daemons import MAX_NODES, TEMPLATE

FILES: Final = {"imexd.cfg", "imexd.cfg.tmpl", "nodes.cfg", "place.json", ready_lock.FILE}
"""The domain's directory of a node whose daemon has worked."""


def wait_right(sandbox: DaemonSandbox) -> None:
    """Wait until nothing is wrong, and no signal is to be sent any more."""
    problem = ""

    def is_right() -> bool:
        nonlocal problem
        problem = find_problem(sandbox)
        return not problem

    try:
        sandbox.wait_until(is_right, "everything to be right")
    except AssertionError as error:
        raise AssertionError(f"{problem}: {error}") from error


def find_problem(sandbox: DaemonSandbox) -> str:
    """What is not as without any kill; empty if nothing is."""
    pod, rack = sandbox.subject, sandbox.rack
    own = [each for each in rack.clique().get("daemons", []) if each["nodeName"] == SUBJECT]
    wanted = {
        "nodeName": SUBJECT,
        "ipAddress": pod.ip,
        "cliqueID": CLIQUE,
        "index": sandbox.index,
        "status": "Ready",
        "podUID": pod.uid,
    }
    if own != [wanted]:
        return f"its entries are {own}"
    if not sandbox.is_locked():
        return "the lock is not held"
    for each in (pod, sandbox.peer):
        if each is not None and each.hosts_entries() != rack.expected_hosts_entries():
            return f"the hosts file of {each.node} has {each.hosts_entries()}"
    if wrong := find_wrong_file(sandbox) or _find_wrong_names(sandbox):
        return wrong
    if len(sandbox.imex_pids()) != 1:
        return f"there are {len(sandbox.imex_pids())} nvidia-imex"
    status = pod.status()
    if not status.get("isReady") or status["imex"]["isSignalDue"]:
        return f"its status is {status}"
    return ""


def find_wrong_file(sandbox: DaemonSandbox) -> str:
    """A file that is not whole; empty if each is, or is not there."""
    config = TEMPLATE.replace("{{ .IMEXCmdBindInterfaceIP }}", sandbox.subject.ip)
    config = config.replace("{{ .IMEXDaemonNodesConfigPath }}", f"{IMEXD}/nodes.cfg")
    peers = "".join(f"{name}\n" for name in sandbox.rack.names.all(MAX_NODES))
    wanted = {"imexd.cfg": config, "nodes.cfg": peers, ready_lock.FILE: sandbox.subject.uid}
    for name, text in wanted.items():
        path = sandbox.imexd / name
        if path.exists() and path.read_text() != text:
            return f"{name} has {path.read_text()!r}"
    place, own = sandbox.imexd / "place.json", {"cliqueID": CLIQUE, "index": sandbox.index}
    if place.exists() and json.loads(place.read_text() or "{}") != own:
        return f"place.json has {place.read_text()!r}"
    return ""


def check_starting(sandbox: DaemonSandbox, *, is_known: bool) -> None:
    """Check what must be true at any time while a daemon starts.

    Args:
        sandbox: The daemon has been stopped by a signal.
        is_known: Whether there may be an entry of the container before.
    """
    is_locked = sandbox.is_locked()
    assert sandbox.imex_pids() or not is_locked, "the lock is held without an nvidia-imex"
    entry = sandbox.rack.entries().get(SUBJECT, {})
    is_said = entry.get("status") == "Ready" and not is_known
    assert is_locked or not is_said, "Ready is said before the lock is held"


def check_killed(sandbox: DaemonSandbox) -> None:
    """Check what must be true on the node as a kill has left it."""
    assert not sandbox.processes(), f"processes are left: {sandbox.processes()}"
    assert not sandbox.is_locked(), "a dead daemon holds the lock"
    wrong = find_wrong_file(sandbox)
    assert not wrong, wrong


def check_recovered(sandbox: DaemonSandbox) -> None:
    """Check what is not known to `find_problem`: what others see, and that nothing is left."""
    peer, pod, rack = sandbox.peer, sandbox.subject, sandbox.rack
    if peer is not None:
        sandbox.wait_until(lambda: rack.are_connected(pod, peer), "connections with the peer")
    starts = pod.status()["imex"]["starts"]
    assert starts == 1, f"nvidia-imex was started {starts} times\n{sandbox.log()}"
    metadata, clique = sandbox.pod_metadata(), rack.clique()["metadata"]
    label = (metadata.get("labels") or {}).get(names.CLIQUE_LABEL)
    assert label == CLIQUE, f"the pod's label is {label}"
    for each in (metadata, clique):
        assert not each.get("finalizers"), f"finalizers: {each}"
    owners = [each["uid"] for each in clique["ownerReferences"]]
    assert owners.count(pod.uid) == 1, f"the clique's owners: {owners}"


def check_stop(sandbox: DaemonSandbox, *, is_entry_removed: bool) -> None:
    """Check that the daemon ends well, and that its lock goes with it, and its entry."""
    code = sandbox.subject.stop(signal.SIGTERM)
    assert code == 0, f"the daemon ended with {code}\n{sandbox.log()}"
    assert "Traceback" not in sandbox.subject.log(), sandbox.log()
    assert not sandbox.processes(), f"processes are left: {sandbox.processes()}"
    assert not sandbox.is_locked(), "the lock is held"
    if is_entry_removed:
        sandbox.wait_until(lambda: SUBJECT not in sandbox.rack.entries(), "its entry to go")
    wrong = _find_wrong_names(sandbox)
    assert not wrong, wrong


def _find_wrong_names(sandbox: DaemonSandbox) -> str:
    """Files that are missing in the domain's directory or left there; empty if none are."""
    found = {path.name for path in sandbox.imexd.iterdir()}
    return "" if found == FILES else f"the domain's directory has {sorted(found)}"
