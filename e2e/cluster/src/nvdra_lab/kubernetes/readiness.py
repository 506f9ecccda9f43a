# SPDX-License-Identifier: Apache-2.0
"""Waits until a new cluster works, and notices at once when it will not."""

import socket
import time
from collections.abc import Callable

from nvdra_lab.errors import ComponentError
from nvdra_lab.kubernetes import initial_objects, node_objects
from nvdra_lab.kubernetes.kubectl import Kubectl
from nvdra_lab.layout import CONTROL_PLANE, LabDir
from nvdra_lab.machines import processes
from nvdra_lab.model import Lab
from nvdra_lab.progress import Progress

CONTROL_PLANE_TIMEOUT_S = 90.0
NODES_TIMEOUT_S = 120.0
POLL_S = 0.2


def wait(lab: Lab, where: LabDir, kubectl: Kubectl, progress: Progress) -> None:
    """Wait until pods can be created, run on every node and reach Services.

    Raises:
        ComponentError: A component ended or did not become ready.
    """
    with progress.step("control plane") as step:

        def is_running() -> bool:
            status = processes.read_status(where.machine(CONTROL_PLANE))
            step.detail = status.step
            return status.phase == "running"

        _until(lab, where, CONTROL_PLANE_TIMEOUT_S, is_running, "kube-apiserver")
        kubectl.apply(initial_objects.manifest(lab))
    with progress.step(f"{len(lab.nodes)} nodes Ready") as step:
        waiting: list[node_objects.NodeFacts] = []

        def are_ready() -> bool:
            known = node_objects.facts(kubectl.get("nodes"))
            waiting[:] = [node for node in known if not node.is_ready]
            ready = len(known) - len(waiting)
            step.detail = f"{ready} of {len(lab.nodes)}"
            return ready == len(lab.nodes)

        _until(lab, where, NODES_TIMEOUT_S, are_ready, f"{lab.nodes[-1].name}/kubelet")
    with progress.step("service accounts and Services"):
        _until(
            lab,
            where,
            CONTROL_PLANE_TIMEOUT_S,
            lambda: _has_account(kubectl),
            "kube-controller-manager",
        )
        _until(lab, where, CONTROL_PLANE_TIMEOUT_S, lambda: _serves(lab), "kube-proxy")


def wait_for_machine(where: LabDir, name: str) -> None:
    """Wait until a machine has run its steps, independently of the other machines.

    Raises:
        ComponentError: A step failed or did not end.
    """
    folder = where.machine(name)
    deadline = time.monotonic() + NODES_TIMEOUT_S
    while (status := processes.read_status(folder)).phase != "running":
        log = folder.log_of(status.step or processes.INIT_LOG)
        if status.phase == "failed":
            raise ComponentError(_title(name, status.step), status.reason, log)
        if time.monotonic() > deadline:
            reason = f"not ready within {NODES_TIMEOUT_S:.0f} s"
            raise ComponentError(_title(name, status.step), reason, log)
        time.sleep(POLL_S)


def check_machines(lab: Lab, where: LabDir) -> None:
    """Check that no component of the lab has ended.

    Raises:
        ComponentError: A component has ended; its log is named.
    """
    for name in (CONTROL_PLANE, *(node.name for node in lab.nodes)):
        folder = where.machine(name)
        status = processes.read_status(folder)
        if status.phase == "failed":
            raise ComponentError(
                _title(name, status.step), status.reason, folder.log_of(status.step)
            )
        for unit, fate in status.units.items():
            if fate.exits:
                raise ComponentError(_title(name, unit), fate.last_exit, folder.log_of(unit))
        if processes.init_pid(folder) is None:
            log = folder.log_of(processes.INIT_LOG)
            raise ComponentError(_title(name, processes.INIT_LOG), "ended", log)


def _until(
    lab: Lab, where: LabDir, timeout_s: float, is_done: Callable[[], bool], suspect: str
) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        check_machines(lab, where)
        if time.monotonic() > deadline:
            machine, _, unit = suspect.rpartition("/")
            log = where.machine(machine or CONTROL_PLANE).log_of(unit)
            raise ComponentError(suspect, f"not ready within {timeout_s:.0f} s", log)
        time.sleep(POLL_S)


def _has_account(kubectl: Kubectl) -> bool:
    """Whether the namespace has what pods need to be accepted."""
    return kubectl.exists("serviceaccount/default") and kubectl.exists("configmap/kube-root-ca.crt")


def _serves(lab: Lab) -> bool:
    try:
        with socket.create_connection((lab.network.kubernetes_service, 443), timeout=1):
            return True
    except OSError:
        return False


def _title(machine: str, unit: str) -> str:
    return unit if machine == CONTROL_PLANE else f"{machine}/{unit}"
