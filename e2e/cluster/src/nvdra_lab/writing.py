"""The files of a new lab: identities, configuration, and each machine's plan. Effects: files."""

import datetime
import os
from pathlib import Path

from nvdra_lab import (
    binaries,
    controlplane,
    hardware,
    machine,
    model,
    node,
    pki,
)
from nvdra_lab.environment import Environment
from nvdra_lab.layout import CONTROL_PLANE, LabDir
from nvdra_lab.model import Lab, Node

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write(
    environment: Environment,
    lab: Lab,
    where: LabDir,
    programs: dict[str, str],
    archives: list[Path],
) -> None:
    """Write every file of the lab, so that its machines have only to be started.

    Args:
        environment: Of this process.
        lab: The lab.
        where: Its folder, which exists.
        programs: Program name → path.
        archives: Images that every node has from the start.
    """
    identities = pki.make(lab, datetime.datetime.now(datetime.UTC))
    _put(where.admin_kubeconfig, identities.admin_kubeconfig.encode())
    variables = machine_environment(environment, programs)
    plane = where.machine(CONTROL_PLANE)
    plans = [controlplane.machine(lab, plane, programs, variables)]
    files = dict(identities.files)
    for member in lab.nodes:
        parts = node.Parts(
            programs=programs,
            environment=variables,
            login=_login(lab, member, variables),
            python=environment.python,
            archives=tuple(map(str, archives)),
        )
        plans.append(node.machine(lab, member, where.machine(member.name), parts))
        files[member.name] = identities.files[member.name] | node.files(lab, member)
    for plan in plans:
        _write_machine(where, plan, files[plan.name])


def machine_environment(environment: Environment, programs: dict[str, str]) -> dict[str, str]:
    """What the processes of a machine find in their environment: little of the caller's."""
    tools = binaries.folders(programs, list(programs))
    # The simulator's compiled parts are found through these two.
    kept = {name: environment.variables.get(name) for name in ("HOME", "XDG_CACHE_HOME")}
    return {
        "PATH": ":".join([*tools, str(Path(environment.python).parent), SYSTEM_PATH]),
        "TMPDIR": "/run",
        "LANG": "C.UTF-8",
        **{name: value for name, value in kept.items() if value},
    }


def _login(lab: Lab, member: Node, variables: dict[str, str]) -> dict[str, str]:
    """The driver's programs and what they need, for `lab exec`."""
    found = hardware.login_environment(hardware.describe(str(lab.profile), member.name))
    driver = ":".join(f"{model.DRIVER_ROOT}/{folder}" for folder in ("usr/bin", "bin"))
    return {**found, "PATH": f"{variables['PATH']}:{driver}"}


def _write_machine(where: LabDir, plan: machine.Machine, files: dict[str, bytes]) -> None:
    folder = where.machine(plan.name)
    for made in (folder.log, folder.var_lib, folder.var_log, folder.run, folder.etc_work):
        made.mkdir(parents=True)
    for path, content in files.items():
        _put(folder.on_host(path), content)
    folder.plan_file.write_text(machine.encode(plan))


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
