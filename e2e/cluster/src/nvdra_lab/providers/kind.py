# SPDX-License-Identifier: Apache-2.0
"""A new cluster whose nodes are containers, created by kind.

The control plane is kind's own. Each GPU node has simulated hardware, which is made on the host and
mounted into the node's container.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from nvdra_lab import state, subprocesses, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes import kind_config
from nvdra_lab.layout import LabDir
from nvdra_lab.machines import hardware, kind_hardware
from nvdra_lab.model import Lab, Node
from nvdra_lab.progress import Progress
from nvdra_lab.providers.local import LabRequest

PROGRAMS = ("kind", "docker", "unshare")


def is_available(environment: Environment) -> bool:
    """Whether kind is installed, docker answers, and this is root."""
    if not environment.is_root or missing_programs(environment):
        return False
    with contextlib.suppress(LabError):
        subprocesses.run(["docker", "version"], env=environment.variables)
        return True
    return False


def missing_programs(environment: Environment) -> list[str]:
    """The programs that are not there."""
    return [name for name in PROGRAMS if shutil.which(name, path=environment.path) is None]


def up(environment: Environment, request: LabRequest, image: str, progress: Progress) -> Lab:
    """Create a cluster, or leave nothing of it.

    Args:
        environment: The environment of this process.
        request: What the user asks for.
        image: The image of the nodes; empty for kind's own of that release.
        progress: Reports every step.

    Raises:
        LabError: Something is missing, or kind fails; the message has the end of its output.
    """
    kubernetes = versions.resolve(request.kube, binaries.releases(environment, "kubernetes"))
    _check(environment, request)
    lab = kind_config.plan(
        request.name, request.node_count, request.profile, kubernetes, request.gates
    )
    for node in lab.nodes:
        hardware.describe(request.profile, node.name)
    with progress.step("the simulated driver"):
        hardware.compile_programs()
    with _begin_lab(environment, lab) as where:
        folders = {node.name: _folder(where, node) for node in lab.nodes}
        with progress.step(f"the hardware of {len(folders)} nodes"):
            for name, folder in folders.items():
                folder.mkdir(parents=True)
                argv = kind_hardware.install_argv(environment.python, folder, request.profile, name)
                subprocesses.run(argv, env=environment.variables)
        file = where.root / "kind.yaml"
        file.write_text(yaml.safe_dump(kind_config.config(lab, folders, image), sort_keys=False))
        with progress.step(f"kind cluster {kind_config.cluster_name(lab)}", "about a minute"):
            where.admin_kubeconfig.touch(mode=0o600)
            argv = [*kind_config.create_command(lab, file, where.admin_kubeconfig)]
            subprocesses.run(argv, env=environment.variables)
        for node in lab.nodes:
            _sync_devices(environment, node)
    return lab


def down(environment: Environment, lab: Lab) -> None:
    """Delete the cluster and the hardware of its nodes."""
    where = state.folder(environment, lab.name)
    argv = [*kind_config.delete_command(lab, where.admin_kubeconfig)]
    subprocesses.run(argv, env=environment.variables)
    state.remove(environment, lab.name)


def execute(
    environment: Environment, lab: Lab, name: str, command: list[str], *, has_terminal: bool
) -> int:
    """Run a command on a node, with this terminal."""
    node = lab.node(name)
    variables = _login(lab, node)
    argv = kind_config.exec_command(node.name, variables, command, has_terminal=has_terminal)
    return kind_hardware.run(argv, environment.variables)


def sim(environment: Environment, lab: Lab, name: str, command: list[str]) -> int:
    """Run nvdra-simctl for a node, and let the node's /dev follow."""
    node = lab.node(name)
    program = str(Path(environment.python).parent / "nvdra-simctl")
    folder = _folder(state.folder(environment, lab.name), node)
    argv = kind_hardware.argv(environment.python, folder, [program, *command])
    status = kind_hardware.run(argv, {**environment.variables, **_login(lab, node)})
    _sync_devices(environment, node)
    return status


def load_images(
    environment: Environment, lab: Lab, archives: list[Path], progress: Progress
) -> None:
    """Import archives of images into every node.

    Raises:
        LabError: An archive is missing or kind rejects it.
    """
    for archive in archives:
        if not archive.is_file():
            raise LabError(f"{archive}: there is no such archive")
        with progress.step(f"{archive.name} into {len(lab.nodes) + 1} nodes"):
            argv = [*kind_config.load_command(lab, archive)]
            subprocesses.run(argv, env=environment.variables)


def _check(environment: Environment, request: LabRequest) -> None:
    if not environment.is_root:
        raise LabError("a lab creates device nodes for its GPUs: run it as root (sudo lab …)")
    if missing := missing_programs(environment):
        raise LabError(f"--provider kind needs {', '.join(missing)} on PATH")
    if request.has_ipv6:
        raise LabError("--ipv6 is for --provider local")
    if request.has_audit_log:
        raise LabError("--audit-log is for --provider local")
    if request.has_passthrough:
        raise LabError("--passthrough is for --provider local")
    if request.pod_addresses is not None:
        raise LabError("--pod-addresses is for --provider local")


@contextlib.contextmanager
def _begin_lab(environment: Environment, lab: Lab) -> Iterator[LabDir]:
    """Create the lab's directory; the cluster is deleted if the block fails."""
    if state.load(environment, lab.name) is not None:
        raise LabError(f"lab {lab.name} exists already; `lab down --name {lab.name}` removes it")
    state.remove(environment, lab.name)
    where = state.save(environment, lab, {})
    try:
        yield where
    except BaseException:
        down(environment, lab)
        raise


def _sync_devices(environment: Environment, node: Node) -> None:
    subprocesses.run([*kind_config.sync_devices_command(node)], env=environment.variables)


def _folder(where: LabDir, node: Node) -> Path:
    """The simulated hardware of a node, on the host."""
    return where.machine(node.name).run / "nvidia"


def _login(lab: Lab, node: Node) -> Mapping[str, str]:
    return hardware.login_environment(hardware.describe(str(lab.profile), node.name))
