# SPDX-License-Identifier: Apache-2.0
"""The commands of `lab`, one function each; they return the exit status."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from nvdra_lab import state, status_report, versions
from nvdra_lab.artifacts import binaries, image_context, images, project_images
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.kubectl import Kubectl
from nvdra_lab.kubernetes.platforms import PLATFORMS
from nvdra_lab.layout import CONTROL_PLANE, LabDir, MachineDir
from nvdra_lab.machines import network, processes, requirements
from nvdra_lab.model import Lab, Node
from nvdra_lab.progress import Progress
from nvdra_lab.providers import existing, kind, local

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Action: TypeAlias = Callable[[Environment, argparse.Namespace, Progress], int]
"""One command, which returns the exit status."""

CLIENTS = ("kubectl", "helm")
_PROVIDERS = {"existing": existing, "kind": kind, "local": local}


def up(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Start a lab, and print how to use it."""
    provider = options.provider
    if provider == "auto":
        provider = "kind" if kind.is_available(environment) else "local"
    if provider == "existing":
        if options.kubeconfig is None:
            raise LabError("--provider existing needs --kubeconfig FILE")
        existing.up(environment, options.name, Path(options.kubeconfig), progress)
    else:
        gates = versions.parse_gates(options.feature_gates)
        wishes = local.LabRequest(
            options.name,
            options.nodes,
            options.profile,
            options.kube,
            gates,
            has_ipv6=options.ipv6,
            has_audit_log=options.audit_log,
            has_passthrough=options.passthrough,
            pod_addresses=options.pod_addresses,
            runtime=options.runtime or PLATFORMS[options.like].runtime,
            platform=options.like,
        )
        if provider == "kind":
            kind.up(environment, wishes, options.node_image, progress)
        else:
            local.up(environment, wishes, progress)
    suffix = "" if options.name == "lab" else f" --name {options.name}"
    progress.print_line(
        f'lab {options.name} is up. Next: eval "$(lab env{suffix})"; kubectl get nodes'
    )
    return 0


def down(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Stop a lab, whatever state its start reached."""
    lab = state.load(environment, options.name)
    if lab is None:
        state.remove(environment, options.name)
        progress.print_line(f"lab {options.name} is not up")
        return 0
    with progress.step(f"lab {lab.name} down"):
        _PROVIDERS[lab.provider].down(environment, lab)
    return 0


def status(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Print the state of everything; return 1 if something is wrong."""
    lab = state.required(environment, options.name)
    facts = status_report.gather(environment, lab, _kubectl(environment, lab))
    print(status_report.as_json(facts) if options.json else status_report.as_table(facts))
    return 0 if status_report.is_healthy(facts) else 1


def env(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Print shell commands that make kubectl and helm talk to the lab."""
    lab = state.required(environment, options.name)
    where = state.folder(environment, lab.name)
    folders = binaries.folders(_programs(environment, lab), ["kubectl", "helm"])
    for name, value in _client_variables(where).items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"export PATH={shlex.quote(':'.join(folders))}:$PATH")
    return 0


def logs(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Show a log with `tail`, or list the logs."""
    lab = _local(environment, options.name)
    where = state.folder(environment, lab.name)
    if options.component is None:
        for file in sorted(where.machines.glob("*/log/*.log")):
            machine = file.parent.parent.name
            print(file.stem if machine == CONTROL_PLANE else f"{machine}/{file.stem}")
        return 0
    machine, unit = _component(options.component)
    file = where.machine(machine).log_of(unit)
    if not file.exists():
        raise LabError(f"{options.component} has no log; `lab logs` lists the logs")
    follow = ["--follow"] if options.follow else []
    return subprocess.run(["tail", "--lines=+1", *follow, file], check=False).returncode


def restart(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """End a component's process, and wait until its machine has started it again."""
    lab = _local(environment, options.name)
    machine, unit = _component(options.component)
    with progress.step(f"{options.component} again"):
        processes.restart(state.folder(environment, lab.name).machine(machine), unit)
    return 0


def reboot(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """End everything on a node and start it again."""
    lab = _local(environment, options.name)
    with progress.step(f"{options.node} again"):
        local.reboot(environment, lab, options.node, options.hardware)
    return 0


def power_off(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Take a node's power away."""
    lab = _local(environment, options.name)
    with progress.step(f"{options.node} off"):
        local.power_off(environment, lab, options.node)
    return 0


def power_on(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Start a node that is off."""
    lab = _local(environment, options.name)
    with progress.step(f"{options.node} on"):
        local.power_on(environment, lab, options.node)
    return 0


def cut_link(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Let two nodes' IMEX daemons reach each other no more."""
    one, other, namespace = _link(environment, options)
    network.cut_link(one, other, options.port, namespace)
    return 0


def mend_link(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Let two nodes' IMEX daemons reach each other again."""
    one, other, namespace = _link(environment, options)
    network.mend_link(one, other, options.port, namespace)
    return 0


def programs(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Build missing programs, those of labs unless others are named, and print their paths."""
    kubernetes = versions.resolve(options.kube, binaries.releases(environment, "kubernetes"))
    wanted = options.program or binaries.PROGRAMS
    for name, path in binaries.ensure(environment, kubernetes, progress, wanted).items():
        print(f"{name:26} {path}")
    return 0


def execute(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Run a command on a node, with this terminal."""
    lab = _created(environment, options.name)
    command = options.command or ["sh"]
    if lab.provider == "kind":
        has_terminal = sys.stdin.isatty()
        return kind.execute(environment, lab, options.node, command, has_terminal=has_terminal)
    return _inside(environment, lab, _machine(environment, lab, options.node), command)


def sim(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Run nvdra-simctl on a node."""
    lab = _created(environment, options.name)
    if lab.provider == "kind":
        return kind.sim(environment, lab, options.node, options.command)
    folder = _machine(environment, lab, lab.node(options.node).name)
    return _inside(environment, lab, folder, ["nvdra-simctl", *options.command])


def build_images(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Build the project's images, and print their paths."""
    requirements.check(environment)
    hook = binaries.cdi_hook(environment, progress)
    images.ensure_small(environment, progress)
    for reference, archive in project_images.build(
        environment, options.base, hook, progress
    ).items():
        print(f"{reference:44} {archive}")
    return 0


def make_image_context(
    environment: Environment, options: argparse.Namespace, progress: Progress
) -> int:
    """Make the build context of all images for another builder."""
    context = Path(options.folder)
    if context.exists():
        raise LabError(f"{context} exists already: remove it, or name another folder")
    hook = binaries.cdi_hook(environment, progress)
    with progress.step(f"build context {context}", "about 20 s"):
        packages = [project.name for project in project_images.all_projects(environment)]
        image_context.make(environment, context, packages, options.python, hook)
    return 0


def load_images(environment: Environment, options: argparse.Namespace, progress: Progress) -> int:
    """Import images into every node."""
    lab = _created(environment, options.name)
    files = [Path(file) for file in options.archive] or images.built(environment)
    if lab.provider == "kind":
        kind.load_images(environment, lab, files, progress)
        return 0
    for file in files:
        images.load(environment, lab, _programs(environment, lab), file, progress)
    if not options.archive and lab.profile is not None:
        progress.print_line(
            "the images are in every node. Next, in the checkout: helm install nvdra charts/nvdra "
            "--namespace nvdra-system --create-namespace --wait --values "
            "e2e/cluster/chart-values.yaml"
            + (" --values e2e/cluster/passthrough-values.yaml" if lab.has_passthrough else "")
            + (f" and what docs/platforms.md has for {lab.platform}" if lab.platform else "")
        )
    return 0


def client(environment: Environment, options: argparse.Namespace, _: Progress) -> int:
    """Replace this process with kubectl or helm for the lab."""
    lab = state.required(environment, options.name)
    program = _programs(environment, lab)[options.program]
    ours = _client_variables(state.folder(environment, lab.name))
    os.execve(program, [program, *options.command], {**environment.variables, **ours})


def _client_variables(where: LabDir) -> dict[str, str]:
    """The environment variables with which kubectl and helm use a lab."""
    return {"KUBECONFIG": str(where.admin_kubeconfig), "KUBECACHEDIR": str(where.kubectl_cache)}


def _created(environment: Environment, name: str) -> Lab:
    """A lab whose machines lab has made."""
    lab = state.required(environment, name)
    if lab.provider == "existing":
        raise LabError(f"lab {name} is an existing cluster: lab cannot enter its machines")
    return lab


def _local(environment: Environment, name: str) -> Lab:
    """A lab whose machines are processes here."""
    lab = _created(environment, name)
    if lab.provider != "local":
        raise LabError(f"lab {name} is a kind cluster: this command is for --provider local")
    return lab


def _programs(environment: Environment, lab: Lab) -> dict[str, str]:
    """The programs that the commands for a lab run; only a local one needs more than clients."""
    if lab.provider == "local":
        return binaries.of_lab(environment, lab.kubernetes, lab.runtime, Progress())
    return binaries.ensure(environment, lab.kubernetes, Progress(), CLIENTS)


def _kubectl(environment: Environment, lab: Lab) -> Kubectl:
    where = state.folder(environment, lab.name)
    program = _programs(environment, lab)["kubectl"]
    return Kubectl(program, where.admin_kubeconfig, where.kubectl_cache, environment.variables)


def _link(environment: Environment, options: argparse.Namespace) -> tuple[Node, Node, Path]:
    """The two nodes of a link, and the network namespace that it is in."""
    lab = _local(environment, options.name)
    if options.one == options.other:
        raise LabError(f"a link has two ends; {options.one} is one of them, which is the other?")
    namespace = state.folder(environment, lab.name).net_namespace
    return lab.node(options.one), lab.node(options.other), namespace


def _component(name: str) -> tuple[str, str]:
    machine, _, unit = name.rpartition("/")
    return machine or CONTROL_PLANE, unit


def _machine(environment: Environment, lab: Lab, name: str) -> MachineDir:
    wanted = name if name == CONTROL_PLANE else lab.node(name).name
    return state.folder(environment, lab.name).machine(wanted)


def _inside(environment: Environment, lab: Lab, folder: MachineDir, command: list[Any]) -> int:
    init = processes.init_pid(folder)
    if init is None:
        raise LabError(f"{folder.root.name} of lab {lab.name} does not run; take it down: lab down")
    variables = processes.environment_inside(folder) | {
        name: value for name, value in environment.variables.items() if name == "TERM"
    }
    argv = [*processes.enter_argv(init), "env", "-i"]
    argv += [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run([*argv, *command], check=False).returncode
