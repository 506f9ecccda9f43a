# SPDX-License-Identifier: Apache-2.0
"""Runs the reference driver's controller beside our plugins and daemons, where ours does not run.

Its image is the archive that `--peer` names. Nobody may pass one on, so without the option the same
manifest runs the image of our own controller, which has the reference's program name as a link.
"""

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from string import Template

from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.installation import NAMESPACE, Cluster

NAME = "reference-controller"
MANIFEST = Path(__file__).with_suffix(".yaml")
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
"""Where an archive has the name of its image: containerd's and Docker's place, and that of OCI."""
START_S = 60


@contextlib.contextmanager
def run(cluster: Cluster, archive: Path | None, *, max_nodes: int) -> Iterator[None]:
    """Run the controller until the block is left. No controller of ours may run.

    Args:
        cluster: Where the driver is installed.
        archive: An OCI archive of the reference's image; None runs our own controller's.
        max_nodes: The limit that it gives its daemons.
    """
    if archive is not None:
        cluster.lab.run_checked("image", "load", str(archive))
    ours = compute_domains.controller_deployment(cluster)
    (container,) = ours["spec"]["template"]["spec"]["containers"]
    manifest = Template(MANIFEST.read_text()).safe_substitute(
        name=NAME,
        namespace=NAMESPACE,
        image=container["image"] if archive is None else image_name(archive),
        daemon_image=compute_domains.daemon_image(cluster),
        max_nodes=max_nodes,
    )
    cluster.driver_namespace.apply(manifest)
    try:
        words = ("rollout", "status", f"deployment/{NAME}", f"--timeout={START_S}s")
        cluster.driver_namespace.run(*words, timeout_s=START_S + 5)
        yield
    finally:
        cluster.driver_namespace.delete("deployment", NAME)
        cluster.driver_namespace.delete("clusterrolebinding", NAME)
        cluster.driver_namespace.delete("serviceaccount", NAME)


def image_name(archive: Path) -> str:
    """The name of the image in an OCI archive.

    Raises:
        ValueError: It is another kind of archive, or its image has no name.
    """
    with tarfile.open(archive) as opened:
        try:
            index = opened.extractfile("index.json")
        except KeyError as error:
            raise ValueError(
                f"{archive} is no OCI archive: write it with `skopeo copy docker://IMAGE "
                "oci-archive:FILE:IMAGE`"
            ) from error
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
    for annotation in NAME_ANNOTATIONS:
        if name := manifest.get("annotations", {}).get(annotation):
            return str(name)
    raise ValueError(
        f"the image in {archive} has no name: write it with `skopeo copy docker://IMAGE "
        "oci-archive:FILE:IMAGE`"
    )
