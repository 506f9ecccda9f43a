# SPDX-License-Identifier: Apache-2.0
"""The command line of `lab`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from types import FrameType

from nvdra_sim.configuration.hardware_catalog import profile_names

from nvdra_lab import actions, environment
from nvdra_lab.__about__ import __version__
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.platforms import PLATFORMS
from nvdra_lab.kubernetes.runtimes import RUNTIMES
from nvdra_lab.machines import network
from nvdra_lab.progress import Progress

DESCRIPTION = """\
A real Kubernetes cluster on this machine, each node with simulated NVIDIA GPUs.

etcd, the control plane and every node's kubelet and containerd run as processes here; nothing but
the GPUs is simulated. Needs root, Debian's packages and, to build the programs once, Go. With
docker and kind the nodes are containers instead (--provider)."""

EXAMPLES = """\
a first look:
  lab up                                two nodes with eight simulated H100 each
  eval "$(lab env)"                     kubectl and helm now talk to it
  kubectl get nodes
  lab exec node-1 -- nvidia-smi -L      in the node: its files, its processes, its network
  lab logs node-1/kubelet -f            a component's log; plain `lab logs` lists them
  lab down                              nothing is left but the build cache

Each lab has a name, "lab" unless told otherwise; several can be up at once. --name follows the
command: lab up --name two, lab kubectl --name two get nodes."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; an error becomes one message and exit status 1."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    options = parse(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.exit(options.action(environment.read(), options, Progress()))
    except LabError as error:
        sys.exit(f"lab: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `lab status | head -3` closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line; `action` runs the command, `command` is passed on to other programs."""
    given, command = _split(arguments)
    options = parser().parse_args(given)
    options.command = [*getattr(options, "command", []), *command]
    return options


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = argparse.ArgumentParser(
        prog="lab",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="lab", help="name of the lab (lab)")
    _cluster_commands(commands, named)
    _node_commands(commands, named)
    _power_commands(commands, named)
    _link_commands(commands, named)
    _image_commands(commands, named)
    _client_commands(commands, named)
    return whole


def _cluster_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    _up_command(commands, named)
    _command(
        commands, "down", actions.down, "stop a lab; nothing is left of it",
        "lab down\nlab down --name two            other labs stay up",
        named,
    )  # fmt: skip

    status = _command(
        commands, "status", actions.status, "show the state of components and nodes",
        "lab status\nlab status --json | jq .nodes",
        named,
    )  # fmt: skip
    status.add_argument("--json", action="store_true", help="print JSON")

    _command(
        commands, "env", actions.env, 'print shell commands: eval "$(lab env)"',
        'eval "$(lab env)"; kubectl get nodes\neval "$(lab env --name two)"',
        named,
    )  # fmt: skip
    _component_commands(commands, named)

    programs = _command(
        commands, "binaries", actions.programs,
        "build missing programs, and list all programs",
        "lab binaries\nlab binaries --kube 1.34       programs of another Kubernetes release\n"
        "lab binaries etcd kube-apiserver   only these",
    )  # fmt: skip
    programs.add_argument("program", nargs="*", help="needed programs (all)")
    programs.add_argument(
        "--kube", default="1.36", metavar="VERSION", help="Kubernetes release (1.36)"
    )


def _up_command(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    up = _command(
        commands, "up", actions.up, "start a lab; nothing is left if it fails",
        "lab up                         two nodes with eight simulated H100 each\n"
        "lab up --name two --nodes 1 --profile gb200-nvl72\n"
        "lab up --kube 1.34 --feature-gates DRAExtendedResource=true\n"
        "lab up --provider kind --node-image kindest/node:v1.36.4\n"
        "lab up --provider existing --kubeconfig ~/.kube/config\n\n"
        f"profiles: {', '.join(profile_names())}",
        named,
    )  # fmt: skip
    up.add_argument("--nodes", type=int, default=2, metavar="N", help="number of nodes (2)")
    up.add_argument("--profile", default="dgx-h100", help="the hardware of each node (dgx-h100)")
    up.add_argument("--kube", default="1.36", metavar="VERSION", help="Kubernetes release (1.36)")
    up.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="Kubernetes feature gates in addition to those that the release needs",
    )
    _local_options(up)
    up.add_argument(
        "--provider",
        choices=("auto", "local", "kind", "existing"),
        default="auto",
        help="local: a new cluster of processes on this machine; kind: a new cluster of docker "
        "containers; existing: the cluster of --kubeconfig; auto: kind where docker and kind are, "
        "otherwise local (auto)",
    )
    up.add_argument(
        "--node-image",
        default="",
        metavar="IMAGE",
        help="image of the nodes for --provider kind (kind 0.33.0's of the release)",
    )
    up.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig for --provider existing")


def _local_options(up: argparse.ArgumentParser) -> None:
    """What only a cluster of processes on this machine can have."""
    up.add_argument(
        "--runtime",
        choices=tuple(RUNTIMES),
        help="the container runtime of the nodes; others than the default are built when they are "
        "first asked for (containerd, which is 2.1)",
    )
    likes = "; ".join(f"{name}: {each.about}" for name, each in PLATFORMS.items() if name)
    up.add_argument(
        "--like",
        choices=tuple(filter(None, PLATFORMS)),
        default="",
        help=f"do what a platform does otherwise: {likes}",
    )
    up.add_argument(
        "--ipv6",
        action="store_true",
        help="nodes and pods have IPv6 addresses, which come first, beside IPv4",
    )
    up.add_argument(
        "--audit-log",
        action="store_true",
        help="the API server writes down each request: who, what, and the answer's status "
        "(lab exec control-plane -- tail /var/lib/kube-apiserver/audit.log)",
    )
    up.add_argument(
        "--passthrough",
        action="store_true",
        help="the drivers of the nodes' GPUs can be changed by /run/nvidia/sys, as by sysfs on a "
        "real node, so that GPUs go to virtual machines (lab exec node-1 -- nvdra-simctl pci list)",
    )
    up.add_argument(
        "--pod-addresses",
        type=int,
        metavar="N",
        help="how many addresses each node has for pods: the fewer, the sooner another pod gets "
        "the address of one that has ended (253)",
    )


def _component_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    logs = _command(
        commands, "logs", actions.logs, "show a component's log, or list the logs",
        "lab logs                       list the logs\nlab logs node-1/kubelet -f",
        named,
    )  # fmt: skip
    logs.add_argument(
        "component", nargs="?", help="kube-apiserver, node-1/kubelet, node-1/containerd, …"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log")

    restart = _command(
        commands, "restart", actions.restart, "restart a component",
        "lab restart node-1/kubelet\nlab restart kube-apiserver",
        named,
    )  # fmt: skip
    restart.add_argument("component", help="kube-apiserver, node-1/kubelet, node-1/containerd, …")


def _node_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    execute = _command(
        commands, "exec", actions.execute, "run a command on a node: lab exec node-1 -- nvidia-smi",
        "lab exec node-1 -- nvidia-smi -L\nlab exec control-plane -- ss -tln",
        named,
    )  # fmt: skip
    execute.add_argument("node", help="node-1, …, or control-plane")
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")

    reboot = _command(
        commands, "reboot", actions.reboot,
        "restart a node as after a power failure: lab reboot node-1",
        "lab reboot node-1\nlab reboot node-1 --hardware node-1.yaml   with another driver",
        named,
    )  # fmt: skip
    reboot.add_argument("node", help="node-1, …")
    reboot.add_argument(
        "--hardware",
        type=Path,
        metavar="FILE",
        help="a node file of the simulator: hardware and driver from this boot on (as before)",
    )

    sim = _command(
        commands, "sim", actions.sim, "change a node's simulated hardware: lab sim node-1 --help",
        "lab sim node-1 show\nlab sim node-1 gpu lose 3\nlab sim node-1 --help",
        named,
    )  # fmt: skip
    sim.add_argument("node", help="node-1, …")
    sim.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of nvdra-simctl"
    )


def _power_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    off = _command(
        commands, "power-off", actions.power_off,
        "take a node's power away, as of a tray: lab power-off node-1",
        "lab power-off node-2           everything on it ends at once; nobody answers there\n"
        "kubectl get nodes -w           Kubernetes notices after 40 s\n"
        "lab power-on node-2",
        named,
    )  # fmt: skip
    off.add_argument("node", help="node-1, …")
    on = _command(
        commands, "power-on", actions.power_on, "start a node whose power was taken away",
        "lab power-on node-2            another boot id; the disk has what it had",
        named,
    )  # fmt: skip
    on.add_argument("node", help="node-1, …")


def _link_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    for name, action, summary, example in (
        (
            "cut-link", actions.cut_link, "cut two nodes' IMEX daemons off from each other",
            "lab cut-link node-1 node-2     nvidia-imex stays READY; the domain becomes Degraded\n"
            "kubectl get computedomain ring -o yaml\nlab mend-link node-1 node-2",
        ),
        (
            "mend-link", actions.mend_link, "undo cut-link",
            "lab mend-link node-1 node-2    nvidia-imex tries again within a minute or so",
        ),
    ):  # fmt: skip
        link = _command(commands, name, action, summary, example, named)
        link.add_argument("one", metavar="NODE", help="node-1, …")
        link.add_argument("other", metavar="NODE", help="the node at the other end")
        link.add_argument(
            "--port",
            type=int,
            default=network.IMEX_PORT,
            help=f"TCP port of pods on either node ({network.IMEX_PORT}, where IMEX meets IMEX)",
        )


def _image_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    image = _command(
        commands, "image", None, "build the project's images, and load them into nodes",
        "lab image build\nlab image load                 load all built images into every node",
        named,
    )  # fmt: skip
    verbs = image.add_subparsers(required=True, metavar="VERB")
    build = _command(
        verbs, "build", actions.build_images, "build the project's images into the cache",
        "lab image build\nlab image build --base auto",
    )  # fmt: skip
    build.add_argument(
        "--base",
        default="auto",
        help="auto: python:3.12-slim, or Debian by debootstrap without a registry",
    )
    context = _command(
        verbs, "context", actions.make_image_context,
        "make the build context of all images for another builder",
        "lab image context context\n"
        "docker build --file packages/nvdra-gpu-plugin/Dockerfile context",
    )  # fmt: skip
    context.add_argument("folder", help="the folder to make")
    context.add_argument("--python", default="3.12", help="of the base image (3.12)")
    load = _command(
        verbs, "load", actions.load_images, "import images into every node",
        "lab image load\nlab image load my-image.tar --name two",
    )  # fmt: skip
    # Without a default of its own, which would replace what stands before the verb.
    load.add_argument("--name", default=argparse.SUPPRESS, help="name of the lab (lab)")
    load.add_argument("archive", nargs="*", help="OCI archives (all archives of `lab image build`)")


def _client_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    for program, asked in (("kubectl", "get pods -A"), ("helm", "list -A")):
        client = _command(
            commands, program, actions.client, f"run {program} against the lab",
            f"lab {program} {asked}\nlab {program} --name two {asked}",
            named,
        )  # fmt: skip
        client.usage = f"lab {program} [--name NAME] ARGUMENTS"
        client.set_defaults(program=program)


def _command(
    commands: "actions.Commands", name: str, action: actions.Action | None, summary: str,
    examples: str, *parents: argparse.ArgumentParser,
) -> argparse.ArgumentParser:  # fmt: skip
    """Add a command with its usage in the help; without an action it has sub-commands."""
    command = commands.add_parser(
        name,
        parents=parents,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="examples:\n" + indent(examples, "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(action=action)
    return command


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments for `lab` from those for another program.

    After `kubectl`, `helm` or `--`.
    """
    command, *rest = arguments or [""]
    if command in ("kubectl", "helm"):
        ours = 2 if rest[:1] == ["--name"] else 1 if "".join(rest[:1]).startswith("--name=") else 0
        return [command, *rest[:ours]], rest[ours:]
    if "--" not in arguments or command == "sim":
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
