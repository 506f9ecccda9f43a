# SPDX-License-Identifier: Apache-2.0
"""The latest released version of the driver in a lab: the release's own charts with its own images.

What a user of that release has before an upgrade. `former_images` builds the images.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from nvdra_testing import releases
from nvdra_testing.cluster.installation import NAMESPACE, RELEASE, SIMULATED_ROOTS, Cluster

_IMAGES = {
    "nvdra-gpu-plugin": "nvdra-gpu-plugin.image.tag",
    "nvdra-cd-plugin": "nvdra-cd-plugin.image.tag",
    "nvdra-cd-controller": "nvdra-cd-controller.image.tag",
    "nvdra-imex-daemon": "nvdra-cd-controller.daemon.image.tag",
}


def install(cluster: Cluster, tags: Mapping[str, str], *helm_flags: str, wait_s: int = 60) -> None:
    """Install the released umbrella chart, or go back to it, and wait until its plugins are ready.

    Going back is an upgrade, as docs/upgrade.md says: a rollback of helm 3 finds CRDs that are no
    longer of the release.

    Args:
        cluster: A cluster without the driver, or with a later version of it.
        tags: The tag of each component's image, as `former_images.load` returns them.
        *helm_flags: More flags of helm. Values that the release does not know are refused.
        wait_s: How long helm waits.
    """
    roots = [f"--set-string=global.{name}={path}" for name, path in SIMULATED_ROOTS.items()]
    images = [f"--set-string={_IMAGES[name]}={tag}" for name, tag in tags.items()]
    where = ["--namespace", NAMESPACE, "--create-namespace", "--wait", f"--timeout={wait_s}s"]
    with (
        tempfile.TemporaryDirectory() as folder,
        releases.checkout(releases.latest("nvdra"), Path(folder)) as tree,
    ):
        chart = str(tree / "charts/nvdra")
        how = ("upgrade", "--install", "--reset-values")
        cluster.helm(*how, RELEASE, chart, *where, *roots, *images, *helm_flags)
