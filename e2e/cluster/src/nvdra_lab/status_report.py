# SPDX-License-Identifier: Apache-2.0
"""The status of a lab, as a table or as JSON."""

import dataclasses
import io
import json

from rich.console import Console
from rich.table import Table

from nvdra_lab import state, versions
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes import node_objects
from nvdra_lab.kubernetes.kubectl import Kubectl
from nvdra_lab.layout import CONTROL_PLANE, MachineDir
from nvdra_lab.machines import processes
from nvdra_lab.model import Lab


@dataclasses.dataclass(frozen=True)
class Component:
    """One process of a lab. `memory_mib` is its resident set."""

    name: str
    state: str
    pid: int
    restarts: int
    memory_mib: float
    log: str


@dataclasses.dataclass(frozen=True)
class StatusReport:
    """A lab, its components and nodes; `trouble` says why the API server did not answer."""

    name: str
    provider: str
    kubernetes: str
    gates: dict[str, bool]
    profile: str | None
    kubeconfig: str
    components: list[Component]
    nodes: list[node_objects.NodeFacts]
    trouble: str


def gather(environment: Environment, lab: Lab, kubectl: Kubectl) -> StatusReport:
    """Inspect every process, and ask the API server for the nodes."""
    where = state.folder(environment, lab.name)
    components: list[Component] = []
    if lab.provider == "local":
        for name in (CONTROL_PLANE, *(node.name for node in lab.nodes)):
            components += _components(name, where.machine(name))
    known: list[node_objects.NodeFacts] = []
    trouble = ""
    try:
        known = node_objects.facts(kubectl.get("nodes"))
    except LabError as error:
        trouble = str(error)
    return StatusReport(
        name=lab.name,
        provider=lab.provider,
        kubernetes=lab.kubernetes,
        gates=lab.gates,
        profile=lab.profile,
        kubeconfig=str(where.admin_kubeconfig),
        components=components,
        nodes=known,
        trouble=trouble,
    )


def is_healthy(report: StatusReport) -> bool:
    """Whether every component runs and every node takes pods."""
    components = all(component.state == "running" for component in report.components)
    return components and not report.trouble and all(node.is_ready for node in report.nodes)


def as_json(report: StatusReport) -> str:
    """The report as JSON."""
    return json.dumps(dataclasses.asdict(report), indent=2)


def as_table(report: StatusReport) -> str:
    """The report as a table."""
    hardware = report.profile or "its own hardware"
    lines = [
        f"lab {report.name} ({report.provider}): Kubernetes {report.kubernetes}, {hardware}",
        f"feature gates {versions.as_text(report.gates) or 'of the release'}",
        f"kubeconfig {report.kubeconfig}",
    ]
    text = io.StringIO()
    console = Console(file=text, width=120)
    if report.components:
        table = Table("component", "state", "pid", "restarts", "MiB", box=None)
        for part in report.components:
            row = (
                part.name,
                part.state,
                str(part.pid or "-"),
                str(part.restarts),
                f"{part.memory_mib:.0f}",
            )
            table.add_row(*row)
        console.print(table)
        console.print()
    table = Table("node", "state", "address", "kubelet", box=None)
    for node in report.nodes:
        table.add_row(
            node.name, "Ready" if node.is_ready else node.reason, node.address, node.kubelet
        )
    console.print(table)
    if report.trouble:
        lines.append(f"the API server does not answer: {report.trouble}")
    return "\n".join([*lines, "", text.getvalue().rstrip()])


def _components(machine: str, folder: MachineDir) -> list[Component]:
    init = processes.init_pid(folder)
    status = processes.read_status(folder)
    if init is None and not status.units:
        return [Component(machine, "off", 0, 0, 0.0, "")]
    parts = []
    for unit, fate in status.units.items():
        pid = (processes.host_pid(init, fate.pid) if init and fate.pid else None) or 0
        parts.append(
            Component(
                name=unit if machine == CONTROL_PLANE else f"{machine}/{unit}",
                state="running" if pid else fate.last_exit or "not running",
                pid=pid,
                restarts=fate.exits,
                memory_mib=round(processes.resident_mib(pid), 1),
                log=str(folder.log_of(unit)),
            )
        )
    return parts
