"""A cluster from nothing: every component a process of this machine. Effects."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from nvdra_lab import (
    binaries,
    cgroups,
    hardware,
    images,
    kernel,
    layout,
    machine,
    model,
    network,
    postmortem,
    processes,
    readiness,
    removal,
    requirements,
    state,
    versions,
    writing,
)
from nvdra_lab.environment import Environment
from nvdra_lab.errors import ComponentError, LabError
from nvdra_lab.kubectl import Kubectl
from nvdra_lab.layout import CONTROL_PLANE, LabDir, MachineDir
from nvdra_lab.model import Lab
from nvdra_lab.progress import Progress


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the user asked for; `kube` may be short, "1.36"; `gates` win over the release's."""

    name: str
    node_count: int
    profile: str
    kube: str
    gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)


def up(environment: Environment, wishes: Wishes, progress: Progress) -> Lab:
    """Bring a lab up, or leave nothing of it.

    Raises:
        LabError: What failed, with the end of its log and where the whole log is.
    """
    kubernetes = versions.resolve(wishes.kube, binaries.releases(environment, "kubernetes"))
    requirements.check(environment)
    _check(wishes, kubernetes)
    programs = binaries.ensure(environment, kubernetes, progress)
    archives = images.ensure_small(environment, progress)
    with progress.step("the simulated driver"):
        hardware.compile_programs()
    with _begun(environment, wishes, kubernetes) as lab:
        where = state.folder(environment, lab.name)
        with progress.step(f"{len(lab.nodes) + 1} machines in their namespaces"):
            writing.write(environment, lab, where, programs, archives)
            network.create(lab, where.net_namespace)
            variables = writing.machine_environment(environment, programs)
            for folder in _machines(lab, where):
                processes.start(folder, where.net_namespace, environment.python, variables)
        kubectl = Kubectl(
            programs["kubectl"], where.admin_kubeconfig, where.kubectl_cache, environment.variables
        )
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


def reboot(environment: Environment, lab: Lab, name: str) -> None:
    """Start a node anew: every process ends, /run and /dev are empty, the other files stay.

    Raises:
        LabError: There is no such node.
        ComponentError: It does not come up again.
    """
    where = state.folder(environment, lab.name)
    folder = where.machine(lab.node(name).name)
    processes.kill(folder)
    cgroups.remove(layout.cgroup(lab.name, name))
    removal.tree(folder.run)
    folder.run.mkdir()
    folder.status_file.unlink()
    variables = machine.decode(folder.plan_file.read_text()).environment
    processes.start(folder, where.net_namespace, environment.python, variables)
    readiness.wait_for_machine(where, name)


def _check(wishes: Wishes, kubernetes: str) -> None:
    """Refuse what cannot be before anything is built for it."""
    lab = _planned(wishes, 0, kubernetes)
    hardware.describe(wishes.profile, lab.nodes[0].name)


def _planned(wishes: Wishes, index: int, kubernetes: str) -> Lab:
    return model.plan(
        wishes.name, index, wishes.node_count, wishes.profile, kubernetes, wishes.gates
    )


@contextlib.contextmanager
def _begun(environment: Environment, wishes: Wishes, kubernetes: str) -> Iterator[Lab]:
    """A lab with its folder and addresses, taken down again when the block fails."""
    with state.locked(environment):
        _refuse_or_clear(environment, wishes.name)
        labs = state.every(environment)
        index = model.free_index({lab.index for lab in labs}, network.host_routes())
        lab = _planned(wishes, index, kubernetes)
        state.save(environment, lab, _settings_before(environment, labs))
    try:
        yield lab
    except ComponentError as failure:
        told = postmortem.keep(environment, lab, failure)
        down(environment, lab)
        raise told from failure
    except BaseException:
        down(environment, lab)
        raise


def _refuse_or_clear(environment: Environment, name: str) -> None:
    """A lab that lives is left alone; what a reboot or a kill left is removed."""
    old = state.load(environment, name)
    if old is None:
        state.remove(environment, name)
        return
    if old.provider == "existing" or _is_alive(environment, old):
        raise LabError(f"lab {name} is up already; see `lab status`, or take it down: lab down")
    down(environment, old)


def _is_alive(environment: Environment, lab: Lab) -> bool:
    where = state.folder(environment, lab.name)
    return any(processes.init_pid(folder) for folder in _machines(lab, where))


def _settings_before(environment: Environment, labs: list[Lab]) -> dict[str, str]:
    """The kernel's settings before the first lab: a later one finds them changed."""
    for lab in labs:
        if settings := state.kernel_settings(state.folder(environment, lab.name)):
            return settings
    return kernel.settings()


def _machines(lab: Lab, where: LabDir) -> list[MachineDir]:
    return [where.machine(name) for name in (CONTROL_PLANE, *(node.name for node in lab.nodes))]
