"""The `lab` command: arguments in, exit status out."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from textwrap import indent
from types import FrameType

from nvdra_sim.hardware import profile_names

from nvdra_lab import actions, environment
from nvdra_lab.__about__ import __version__
from nvdra_lab.errors import LabError
from nvdra_lab.progress import Progress

DESCRIPTION = """\
A real Kubernetes cluster on this machine, each node with simulated NVIDIA GPUs.

etcd, the control plane and every node's kubelet and containerd run as processes here; nothing but
the GPUs is simulated. Needs root, Debian's packages and, to build the programs once, Go."""

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
    """Run one command; errors become one message and exit status 1."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    options = parse(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.exit(options.action(environment.read(), options, Progress()))
    except LabError as error:
        sys.exit(f"lab: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `lab status | head -3`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line; `action` does it, `command` is what others get untouched."""
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
    named.add_argument("--name", default="lab", help="the lab, when there are several (lab)")
    _cluster_commands(commands, named)
    _node_commands(commands, named)
    _image_commands(commands, named)
    _client_commands(commands, named)
    return whole


def _cluster_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    _up_command(commands, named)
    _command(
        commands, "down", actions.down, "take a lab down; nothing is left of it",
        "lab down\nlab down --name two            the other labs stay up",
        named,
    )  # fmt: skip

    status = _command(
        commands, "status", actions.status, "components and nodes, and how they are",
        "lab status\nlab status --json | jq .nodes",
        named,
    )  # fmt: skip
    status.add_argument("--json", action="store_true", help="for programs")

    _command(
        commands, "env", actions.env, 'for a shell: eval "$(lab env)"',
        'eval "$(lab env)"; kubectl get nodes\neval "$(lab env --name two)"',
        named,
    )  # fmt: skip
    _component_commands(commands, named)

    programs = _command(
        commands, "binaries", actions.programs,
        "build the programs that are missing and list them",
        "lab binaries\nlab binaries --kube 1.34       those of another Kubernetes\n"
        "lab binaries etcd kube-apiserver   no more than these",
    )  # fmt: skip
    programs.add_argument("program", nargs="*", help="the ones that are needed (all)")
    programs.add_argument(
        "--kube", default="1.36", metavar="VERSION", help="Kubernetes release (1.36)"
    )


def _up_command(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    up = _command(
        commands, "up", actions.up, "bring a lab up; nothing is left if it fails",
        "lab up                         two nodes with eight simulated H100 each\n"
        "lab up --name two --nodes 1 --profile gb200-nvl72\n"
        "lab up --kube 1.34 --feature-gates DRAExtendedResource=true\n"
        "lab up --provider existing --kubeconfig ~/.kube/config\n\n"
        f"profiles: {', '.join(profile_names())}",
        named,
    )  # fmt: skip
    up.add_argument("--nodes", type=int, default=2, metavar="N", help="how many nodes (2)")
    up.add_argument("--profile", default="dgx-h100", help="the hardware of each node (dgx-h100)")
    up.add_argument("--kube", default="1.36", metavar="VERSION", help="Kubernetes release (1.36)")
    up.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="of Kubernetes, besides those that the release needs",
    )
    up.add_argument(
        "--provider",
        choices=("local", "existing"),
        default="local",
        help="local: a new cluster on this machine; existing: the one of --kubeconfig",
    )
    up.add_argument("--kubeconfig", metavar="FILE", help="with --provider existing")


def _component_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    logs = _command(
        commands, "logs", actions.logs, "a component's log; without one, which there are",
        "lab logs                       which there are\nlab logs node-1/kubelet -f",
        named,
    )  # fmt: skip
    logs.add_argument(
        "component", nargs="?", help="kube-apiserver, node-1/kubelet, node-1/containerd, …"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on as it grows")

    restart = _command(
        commands, "restart", actions.restart, "end a component; its machine starts it again",
        "lab restart node-1/kubelet\nlab restart kube-apiserver",
        named,
    )  # fmt: skip
    restart.add_argument("component", help="kube-apiserver, node-1/kubelet, node-1/containerd, …")


def _node_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    execute = _command(
        commands, "exec", actions.execute, "run a command in a node: lab exec node-1 -- nvidia-smi",
        "lab exec node-1 -- nvidia-smi -L\nlab exec control-plane -- ss -tln",
        named,
    )  # fmt: skip
    execute.add_argument("node", help="node-1, …, or control-plane")
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")

    reboot = _command(
        commands, "reboot", actions.reboot,
        "start a node anew, as after a power cut: lab reboot node-1",
        "lab reboot node-1",
        named,
    )  # fmt: skip
    reboot.add_argument("node", help="node-1, …")

    sim = _command(
        commands, "sim", actions.sim, "change a node's simulated hardware: lab sim node-1 --help",
        "lab sim node-1 show\nlab sim node-1 gpu lose 3\nlab sim node-1 --help",
        named,
    )  # fmt: skip
    sim.add_argument("node", help="node-1, …")
    sim.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of nvdra-simctl"
    )


def _image_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    image = _command(
        commands, "image", None, "the project's images: build them, load them into nodes",
        "lab image build\nlab image load                 all that was built, into every node",
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
    load = _command(
        verbs, "load", actions.load_images, "import images into every node",
        "lab image load\nlab image load my-image.tar --name two",
        named,
    )  # fmt: skip
    load.add_argument(
        "archive", nargs="*", help="OCI archives; default: all that `lab image build` made"
    )


def _client_commands(commands: "actions.Commands", named: argparse.ArgumentParser) -> None:
    for program, asked in (("kubectl", "get pods -A"), ("helm", "list -A")):
        client = _command(
            commands, program, actions.client, f"{program}, talking to the lab",
            f"lab {program} {asked}\nlab {program} --name two {asked}",
            named,
        )  # fmt: skip
        client.usage = f"lab {program} [--name NAME] ARGUMENTS"
        client.set_defaults(program=program)


def _command(
    commands: "actions.Commands", name: str, action: actions.Action | None, summary: str,
    examples: str, *parents: argparse.ArgumentParser,
) -> argparse.ArgumentParser:  # fmt: skip
    """A command with help that shows how it is used; without an action it has commands below."""
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
    """What is for `lab`, and what for another program: after `kubectl`, `helm` or `--`."""
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
