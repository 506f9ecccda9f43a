# SPDX-License-Identifier: Apache-2.0
"""An existing cluster: only its kubeconfig is kept, and nothing is started."""

import tempfile
from pathlib import Path

from nvdra_lab import model, state, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes import node_objects
from nvdra_lab.kubernetes.kubectl import Kubectl
from nvdra_lab.model import Lab, Node
from nvdra_lab.progress import Progress

API_GROUP = "resource.k8s.io"


def up(environment: Environment, name: str, kubeconfig: Path, progress: Progress) -> Lab:
    """Use the cluster of a kubeconfig as lab `name`.

    Raises:
        LabError: It does not answer, no node is Ready, or it has no dynamic resource allocation.
    """
    model.check_name(name)
    if state.load(environment, name) is not None:
        raise LabError(f"lab {name} exists already; `lab down --name {name}` removes it")
    if not kubeconfig.is_file():
        raise LabError(f"--kubeconfig {kubeconfig}: there is no such file")
    programs = binaries.ensure(environment, versions.DEFAULT, progress, ["kubectl"])
    with (
        progress.step(f"the cluster of {kubeconfig}"),
        tempfile.TemporaryDirectory() as cache,
    ):
        kubectl = Kubectl(programs["kubectl"], kubeconfig, Path(cache), environment.variables)
        lab = _inspect(name, versions.DEFAULT, kubectl)
        text = kubectl.text("config", "view", "--raw", "--flatten", "--minify")
    where = state.save(environment, lab, {})
    where.admin_kubeconfig.touch(mode=0o600)
    where.admin_kubeconfig.write_text(text)
    return lab


def down(environment: Environment, lab: Lab) -> None:
    """Forget the cluster, which goes on running."""
    state.remove(environment, lab.name)


def _inspect(name: str, kubernetes: str, kubectl: Kubectl) -> Lab:
    versions_served = kubectl.text("api-versions").split()
    if not any(served.startswith(f"{API_GROUP}/") for served in versions_served):
        raise LabError(
            f"the cluster does not serve {API_GROUP}: it has no dynamic resource allocation"
        )
    known = node_objects.facts(kubectl.get("nodes"))
    ready = [node for node in known if node.is_ready]
    if not ready:
        raise LabError(f"none of the cluster's {len(known)} nodes is Ready")
    return Lab(
        name=name,
        provider="existing",
        index=-1,
        profile=None,
        kubernetes=kubernetes,
        gates={},
        nodes=tuple(Node(name=node.name, address=node.address, pod_cidr="") for node in ready),
    )
