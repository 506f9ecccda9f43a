# SPDX-License-Identifier: Apache-2.0
"""A new cluster whose components are processes of this machine."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvdra_lab import file_removal, layout, model, state, versions
from nvdra_lab.artifacts import binaries, images
from nvdra_lab.environment import Environment
from nvdra_lab.errors import ComponentError, LabError
from nvdra_lab.kubernetes import files, readiness
from nvdra_lab.kubernetes.kubectl import Kubectl
from nvdra_lab.layout import CONTROL_PLANE, LabDir, MachineDir
from nvdra_lab.machines import (
    cgroups,
    failed_start,
    hardware,
    inotify,
    kernel,
    machine_spec,
    network,
    processes,
    requirements,
)
from nvdra_lab.model import Lab
from nvdra_lab.progress import Progress


@dataclasses.dataclass(frozen=True)
class LabRequest:
    """The options of the user; `kube` may be short, "1.36", and `gates` override the release's."""

    name: str
    node_count: int
    profile: str
    kube: str
    gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    has_ipv6: bool = False
    has_audit_log: bool = False
    has_passthrough: bool = False
    pod_addresses: int | None = None
    runtime: str = versions.DEFAULT_RUNTIME
    platform: str = ""


def up(environment: Environment, request: LabRequest, progress: Progress) -> Lab:
    """Start a lab, or leave nothing of it.

    Raises:
        LabError: The failure, with the end of the log and the path of the whole log.
    """
    kubernetes = versions.resolve(request.kube, binaries.releases(environment, "kubernetes"))
    requirements.check(environment, request.runtime)
    if request.has_passthrough:
        requirements.check_fuse()
    _check(request, kubernetes)
    inotify.check(request.node_count)
    programs = binaries.of_lab(environment, kubernetes, request.runtime, progress)
    archives = images.ensure_small(environment, progress)
    with progress.step("the simulated driver"):
        hardware.compile_programs(has_passthrough=request.has_passthrough)
    with _begin_lab(environment, request, kubernetes, progress) as lab:
        where = state.folder(environment, lab.name)
        inotify.raise_limits(request.node_count)
        with progress.step(f"{len(lab.nodes) + 1} machines in their namespaces"):
            files.write_lab(environment, lab, where, programs, archives)
            network.create(lab, where.net_namespace)
            variables = files.machine_environment(environment, programs)
            for folder in _machines(lab, where):
                processes.start(folder, where.net_namespace, environment.python, variables)
        kubectl = Kubectl(
            programs["kubectl"], where.admin_kubeconfig, where.kubectl_cache, environment.variables
        )
        readiness.wait(lab, where, kubectl, progress)
    return lab


def down(environment: Environment, lab: Lab) -> None:
    """Stop a lab: processes, cgroups, network, kernel settings and files, in that order."""
    where = state.folder(environment, lab.name)
    for folder in _machines(lab, where):
        processes.kill(folder)
    cgroups.remove(layout.cgroup(lab.name))
    network.remove(lab, where.net_namespace)
    others = [other for other in state.all_labs(environment) if other.name != lab.name]
    if not any(other.provider == "local" for other in others):
        kernel.restore(state.kernel_settings(where))
    state.remove(environment, lab.name)


def reboot(environment: Environment, lab: Lab, name: str, node_file: Path | None = None) -> None:
    """Restart a node: all processes end, /run and /dev are emptied, other files stay.

    Args:
        environment: The environment of this process.
        lab: The lab.
        name: The node.
        node_file: What hardware and driver are from this boot on, as a file of the simulator. None:
            as before.

    Raises:
        LabError: There is no such node, or the file is wrong; the node runs on.
        ComponentError: It does not start again.
    """
    where = state.folder(environment, lab.name)
    folder = where.machine(lab.node(name).name)
    described = None if node_file is None else hardware.describe_file(node_file, name)
    is_off = network.is_disconnected(lab.node(name), where.net_namespace)
    _end_machine(lab, folder)
    if node_file is not None and described is not None:
        files.replace_hardware(folder, node_file.read_bytes(), described)
    if is_off:
        network.connect(lab, lab.node(name), where.net_namespace)
    _start_machine(environment, where, folder)


def power_off(environment: Environment, lab: Lab, name: str) -> None:
    """Take a node's power away: all its processes end at once, and nobody answers at its addresses.

    Raises:
        LabError: There is no such node, or it is off.
    """
    where, node = state.folder(environment, lab.name), lab.node(name)
    folder = where.machine(node.name)
    if processes.init_pid(folder) is None:
        raise LabError(f"{name} is off already; turn it on: lab power-on {name}")
    network.disconnect(lab, node, where.net_namespace)
    _end_machine(lab, folder)


def power_on(environment: Environment, lab: Lab, name: str) -> None:
    """Start a node that is off. It has another boot id, and the files that were on its disk.

    Raises:
        LabError: There is no such node, or it runs.
        ComponentError: It does not start.
    """
    where, node = state.folder(environment, lab.name), lab.node(name)
    folder = where.machine(node.name)
    if processes.init_pid(folder) is not None:
        raise LabError(f"{name} is on; restart it with another boot: lab reboot {name}")
    network.connect(lab, node, where.net_namespace)
    _start_machine(environment, where, folder)


def _end_machine(lab: Lab, folder: MachineDir) -> None:
    """End a node as a power failure does: what it had in memory is lost."""
    processes.kill(folder)
    cgroups.remove(layout.cgroup(lab.name, folder.root.name))
    file_removal.remove_tree(folder.run)
    folder.run.mkdir()
    folder.status_file.unlink(missing_ok=True)


def _start_machine(environment: Environment, where: LabDir, folder: MachineDir) -> None:
    """Start a node again, and wait until its steps are done.

    Raises:
        ComponentError: It does not start.
    """
    variables = machine_spec.decode(folder.plan_file.read_text()).environment
    processes.start(folder, where.net_namespace, environment.python, variables)
    readiness.wait_for_machine(where, folder.root.name)


def _check(request: LabRequest, kubernetes: str) -> None:
    """Reject impossible requests before anything is built for them."""
    lab = _planned(request, 0, kubernetes)
    hardware.describe(request.profile, lab.nodes[0].name)


def _planned(request: LabRequest, index: int, kubernetes: str) -> Lab:
    return model.plan(
        request.name,
        index,
        request.node_count,
        request.profile,
        kubernetes,
        request.gates,
        has_ipv6=request.has_ipv6,
        has_audit_log=request.has_audit_log,
        has_passthrough=request.has_passthrough,
        pod_addresses=request.pod_addresses,
        runtime=request.runtime,
        platform=request.platform,
    )


@contextlib.contextmanager
def _begin_lab(
    environment: Environment, request: LabRequest, kubernetes: str, progress: Progress
) -> Iterator[Lab]:
    """Create a lab with its directory and addresses; it is stopped if the block fails.

    Only one command at a time chooses addresses and changes settings of the host.
    """
    with state.locked(environment.cache.hosts_lock, progress, "another command that starts a lab"):
        _clear_dead_lab(environment, request.name)
        labs = state.all_labs(environment)
        index = model.free_index({lab.index for lab in labs}, network.host_routes())
        lab = _planned(request, index, kubernetes)
        state.save(environment, lab, _settings_before(environment, labs))
    try:
        yield lab
    except ComponentError as failure:
        told = failed_start.keep_logs(environment, lab, failure)
        down(environment, lab)
        raise told from failure
    except BaseException:
        down(environment, lab)
        raise


def _clear_dead_lab(environment: Environment, name: str) -> None:
    """Reject a name whose lab runs, and remove what a reboot or a kill left of one."""
    old = state.load(environment, name)
    if old is None:
        state.remove(environment, name)
        return
    if old.provider != "local" or _is_alive(environment, old):
        raise LabError(f"lab {name} is up already; see `lab status`, or take it down: lab down")
    down(environment, old)


def _is_alive(environment: Environment, lab: Lab) -> bool:
    where = state.folder(environment, lab.name)
    return any(processes.init_pid(folder) for folder in _machines(lab, where))


def _settings_before(environment: Environment, labs: list[Lab]) -> dict[str, str]:
    """The kernel's settings before the first lab; later labs find them changed."""
    for lab in labs:
        if settings := state.kernel_settings(state.folder(environment, lab.name)):
            return settings
    return kernel.settings()


def _machines(lab: Lab, where: LabDir) -> list[MachineDir]:
    return [where.machine(name) for name in (CONTROL_PLANE, *(node.name for node in lab.nodes))]
