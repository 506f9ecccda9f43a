# SPDX-License-Identifier: Apache-2.0
"""Writes the files of a new lab: identities, configuration, and each machine's plan."""

import dataclasses
import datetime
import os
from pathlib import Path

from nvdra_sim.description import NodeDescription

from nvdra_lab import model
from nvdra_lab.artifacts import binaries
from nvdra_lab.environment import Environment
from nvdra_lab.kubernetes import control_plane, node, pki
from nvdra_lab.layout import CONTROL_PLANE, LabDir, MachineDir
from nvdra_lab.machines import hardware, machine_spec, passthrough
from nvdra_lab.model import Lab, Node

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_lab(
    environment: Environment,
    lab: Lab,
    where: LabDir,
    programs: dict[str, str],
    archives: list[Path],
) -> None:
    """Write all files of the lab, so that its machines only have to be started.

    Args:
        environment: The environment of this process.
        lab: The lab.
        where: Its existing directory.
        programs: Program name → path.
        archives: The images that every node has from the start.
    """
    identities = pki.create_identities(lab, datetime.datetime.now(datetime.UTC))
    _write_private(where.admin_kubeconfig, identities.admin_kubeconfig.encode())
    variables = machine_environment(environment, programs)
    plane = where.machine(CONTROL_PLANE)
    plans = [control_plane.machine(lab, plane, programs, variables)]
    files = dict(identities.files)
    files[CONTROL_PLANE] = files[CONTROL_PLANE] | control_plane.files(lab)
    for member in lab.nodes:
        parts = node.Parts(
            programs=programs,
            environment=variables,
            login=_login(lab, member, variables),
            python=environment.python,
            archives=tuple(map(str, archives)),
        )
        plans.append(node.machine(lab, member, where.machine(member.name), parts))
        files[member.name] = identities.files[member.name] | node.files(lab, member, programs)
    for plan in plans:
        _write_machine(where, plan, files[plan.name])


def machine_environment(environment: Environment, programs: dict[str, str]) -> dict[str, str]:
    """The environment of a machine's processes, with only few variables of the caller."""
    tools = binaries.folders(programs, list(programs))
    # The simulator finds its compiled parts with these two.
    kept = {name: environment.variables.get(name) for name in ("HOME", "XDG_CACHE_HOME")}
    return {
        "PATH": ":".join([*tools, str(Path(environment.python).parent), SYSTEM_PATH]),
        "TMPDIR": "/run",
        "LANG": "C.UTF-8",
        **{name: value for name, value in kept.items() if value},
    }


def replace_hardware(folder: MachineDir, content: bytes, description: NodeDescription) -> None:
    """Let a machine that does not run start with the hardware of a node file from now on."""
    _write_private(folder.on_host(hardware.NODE_FILE), content)
    plan = machine_spec.decode(folder.plan_file.read_text())
    login = {**plan.login, **hardware.login_environment(description)}
    folder.plan_file.write_text(machine_spec.encode(dataclasses.replace(plan, login=login)))


def _login(lab: Lab, member: Node, variables: dict[str, str]) -> dict[str, str]:
    """The driver's programs and their requirements, for `lab exec`."""
    found = hardware.login_environment(hardware.describe(str(lab.profile), member.name))
    driver = ":".join(f"{model.DRIVER_ROOT}/{folder}" for folder in ("usr/bin", "bin"))
    first = f"{passthrough.PROGRAMS}:" if lab.has_passthrough else ""
    return {**found, "PATH": f"{first}{variables['PATH']}:{driver}"}


def _write_machine(where: LabDir, plan: machine_spec.Machine, files: dict[str, bytes]) -> None:
    folder = where.machine(plan.name)
    overlays = [step for step in plan.steps if isinstance(step, machine_spec.Overlay)]
    changed = [Path(path) for step in overlays for path in (step.upper, step.work)]
    for made in (folder.log, folder.var_lib, folder.var_log, folder.run, *changed):
        made.mkdir(parents=True)
    for path, content in files.items():
        _write_private(folder.on_host(path), content)
    folder.plan_file.write_text(machine_spec.encode(plan))


def _write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
