# SPDX-License-Identifier: Apache-2.0
"""cert-manager beside a lab: its controller and its CA injector as processes, its CRDs inside.

Both are built from the module that e2e/cluster/binaries pins: 1.11 is the last minor release whose
programs are in it. Its API, cert-manager.io/v1, is that of later releases. Its own webhook, which
only checks what its users write, does not run.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nvdra_lab import environment, subprocesses, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.progress import Progress

from nvdra_testing import yaml_documents
from nvdra_testing.cluster.installation import Cluster

GROUP = "cert-manager"
MODULE = "github.com/cert-manager/cert-manager"
FLAGS = {
    "controller": ("--metrics-listen-address=127.0.0.1:0",),
    "cainjector": (),
}
"""The programs, and the flags that only one of them has."""


@contextmanager
def defined(cluster: Cluster) -> Iterator[None]:
    """Install its CRDs; when the block ends, remove them with all their objects."""
    definitions = list(_definitions(environment.read()))
    names = [each["metadata"]["name"] for each in definitions]
    kubectl = cluster.kubectl
    for each in definitions:
        kubectl.apply(each, "--server-side")
    kubectl.run("wait", "--for=condition=Established", "crd", *names, "--timeout=30s")
    try:
        yield
    finally:
        kubectl.delete("crd", *names)


@contextmanager
def running(cluster: Cluster, directory: Path) -> Iterator[None]:
    """Run it until the block ends.

    Args:
        cluster: The cluster, whose administrator it acts as.
        directory: Where its logs go.
    """
    found = binaries.ensure(environment.read(), versions.DEFAULT, Progress(), list(FLAGS))
    with ExitStack() as stack:
        for program, flags in FLAGS.items():
            argv = [found[program], f"--kubeconfig={cluster.kubectl.kubeconfig}", *flags]
            log = stack.enter_context((directory / f"{program}.log").open("wb"))
            process = subprocess.Popen([*argv, "--leader-elect=false"], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def _definitions(here: environment.Environment) -> Iterator[dict[str, Any]]:
    """Its CRDs, without the labels that its chart would fill in."""
    (version,) = binaries.releases(here, GROUP)
    source = here.source / "binaries" / f"{GROUP}-{version}"
    argv = (binaries.find_go(here), "-C", str(source), "mod", "download", "-json", MODULE)
    folder = Path(json.loads(subprocesses.run(argv))["Dir"]) / "deploy" / "crds"
    for file in sorted(folder.glob("crd-*.yaml")):
        definition = yaml_documents.load(file.read_text())
        definition["metadata"].pop("labels")
        yield definition
