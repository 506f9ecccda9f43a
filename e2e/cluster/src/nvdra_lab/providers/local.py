"""A cluster from nothing: every component a process of this machine. Effects."""

import contextlib
import datetime
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from nvdra_lab import (
    binaries,
    cgroups,
    controlplane,
    images,
    kernel,
    layout,
    machine,
    model,
    network,
    node,
    pki,
    processes,
    readiness,
    requirements,
    state,
    versions,
)
from nvdra_lab.environment import Environment
from nvdra_lab.errors import ComponentError, LabError
from nvdra_lab.kubectl import Kubectl
from nvdra_lab.layout import CONTROL_PLANE, LabDir, MachineDir
from nvdra_lab.model import Lab
from nvdra_lab.progress import Progress

KEPT_FAILURES = 5
TAIL_LINES = 15


def up(
    environment: Environment,
    name: str,
    node_count: int,
    profile: str | None,
    kube: str,
    progress: Progress,
) -> Lab:
    """Bring a lab up, or leave nothing of it.

    Raises:
        LabError: What failed, with the end of its log and where the whole log is.
    """
    kubernetes = versions.resolve(kube, binaries.releases(environment, "kubernetes"))
    requirements.check(environment)
    model.plan(name, 0, node_count, profile, kubernetes)
    programs = binaries.ensure(environment, kubernetes, progress)
    archives = images.ensure_small(environment, progress)
    with _begun(environment, name, node_count, profile, kubernetes) as lab:
        where = state.folder(environment, lab.name)
        with progress.step(f"{len(lab.nodes) + 1} machines in their namespaces"):
            _write(environment, lab, where, programs, archives)
            network.create(lab, where.net_namespace)
            variables = _machine_environment(environment, programs)
            for folder in _machines(lab, where):
                processes.start(folder, where.net_namespace, environment.python, variables)
        kubectl = Kubectl(programs["kubectl"], where.admin_kubeconfig, environment.variables)
        readiness.wait(lab, where, kubectl, progress)
    return lab


def down(environment: Environment, lab: Lab) -> None:
    """Take a lab down: processes, cgroups, network, kernel settings, files, in that order."""
    where = state.folder(environment, lab.name)
    for folder in _machines(lab, where):
        processes.kill(folder)
    cgroups.remove(layout.cgroup(lab.name))
    network.remove(lab, where.net_namespace)
    others = [other for other in state.every(environment) if other.name != lab.name]
    if not any(other.provider == "local" for other in others):
        kernel.restore(state.kernel_settings(where))
    state.remove(environment, lab.name)


@contextlib.contextmanager
def _begun(
    environment: Environment, name: str, node_count: int, profile: str | None, kubernetes: str
) -> Iterator[Lab]:
    """A lab with its folder and addresses, taken down again when the block fails."""
    with state.locked(environment):
        labs = state.every(environment)
        _refuse_or_clear(environment, name)
        index = model.free_index({lab.index for lab in labs}, network.host_routes())
        lab = model.plan(name, index, node_count, profile, kubernetes)
        before = _settings_before(environment, labs)
        state.save(environment, lab, before)
    try:
        yield lab
    except BaseException as failure:
        told = _with_log(environment, lab, failure)
        down(environment, lab)
        if told is not None:
            raise told from failure
        raise


def _refuse_or_clear(environment: Environment, name: str) -> None:
    """A lab that lives is left alone; what a reboot left of one is removed."""
    old = state.load(environment, name)
    if old is None:
        return
    where = state.folder(environment, name)
    if any(processes.init_pid(folder) for folder in _machines(old, where)):
        raise LabError(f"lab {name} is up already; see `lab status`, or take it down: lab down")
    down(environment, old)


def _settings_before(environment: Environment, labs: list[Lab]) -> dict[str, str]:
    for lab in labs:
        if settings := state.kernel_settings(state.folder(environment, lab.name)):
            return settings
    return kernel.settings()


def _machines(lab: Lab, where: LabDir) -> list[MachineDir]:
    return [where.machine(name) for name in (CONTROL_PLANE, *(node.name for node in lab.nodes))]


def _write(
    environment: Environment,
    lab: Lab,
    where: LabDir,
    programs: dict[str, str],
    archives: list[Path],
) -> None:
    """Every file of the lab: identities, configuration, and each machine's plan."""
    identities = pki.make(lab, datetime.datetime.now(datetime.UTC))
    _put(where.admin_kubeconfig, identities.admin_kubeconfig.encode())
    variables = _machine_environment(environment, programs)
    plane = where.machine(CONTROL_PLANE)
    plans = [controlplane.machine(lab, plane, programs, variables)]
    files = {CONTROL_PLANE: identities.files[CONTROL_PLANE]}
    for member in lab.nodes:
        folder = where.machine(member.name)
        plans.append(
            node.machine(
                lab,
                member,
                folder,
                programs,
                variables,
                environment.python,
                tuple(map(str, archives)),
            )
        )
        files[member.name] = identities.files[member.name] | node.files(lab, member)
    for plan in plans:
        folder = where.machine(plan.name)
        for made in (folder.log, folder.var_lib, folder.var_log, folder.run, folder.etc_work):
            made.mkdir(parents=True)
        for path, content in files[plan.name].items():
            _put(folder.on_host(path), content)
        folder.plan_file.write_text(machine.encode(plan))


def _machine_environment(environment: Environment, programs: dict[str, str]) -> dict[str, str]:
    """What the processes of a machine find in their environment: no settings of the caller's."""
    tools = binaries.folders(programs, list(programs))
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "PATH": ":".join([*tools, str(Path(sys.executable).parent), system]),
        "HOME": "/root",
        "TMPDIR": "/run",
        "LANG": "C.UTF-8",
    }


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _with_log(environment: Environment, lab: Lab, failure: BaseException) -> LabError | None:
    """The failure of a component with the end of its log, whose whole is kept elsewhere."""
    if not isinstance(failure, ComponentError):
        return None
    where = state.folder(environment, lab.name)
    now = datetime.datetime.now(datetime.UTC)
    kept = environment.cache.failed / f"{lab.name}-{now:%Y%m%dT%H%M%SZ}"
    for folder in _machines(lab, where):
        if folder.log.is_dir():
            shutil.copytree(folder.log, kept / folder.root.name, dirs_exist_ok=True)
    for old in sorted(environment.cache.failed.iterdir())[:-KEPT_FAILURES]:
        shutil.rmtree(old)
    whole = kept / failure.log.parent.parent.name / failure.log.name
    lines = whole.read_text(errors="replace").splitlines() if whole.exists() else []
    tail = "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:]) or "  | (it said nothing)"
    return LabError(f"{failure}\n{tail}\nthe whole log: {whole}\nall logs: {kept}")
