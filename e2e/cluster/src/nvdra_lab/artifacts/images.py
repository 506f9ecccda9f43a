# SPDX-License-Identifier: Apache-2.0
"""Builds the images of a lab, and loads them into its nodes."""

import dataclasses
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nvdra_lab import state, subprocesses
from nvdra_lab.artifacts import oci_archive, rootfs
from nvdra_lab.artifacts.buildah import Buildah
from nvdra_lab.artifacts.containerd_store import ContainerdStore
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.node import WORKLOAD_IMAGE
from nvdra_lab.kubernetes.runtimes import PAUSE_IMAGE, RUNTIMES
from nvdra_lab.machines import processes
from nvdra_lab.model import Lab
from nvdra_lab.progress import Progress


@dataclasses.dataclass(frozen=True)
class SmallImage:
    """A small image with files of this machine."""

    name: str
    reference: str
    fill: Callable[[Path], None]


SMALL = (
    SmallImage("pause", PAUSE_IMAGE, rootfs.pause),
    SmallImage("workload", WORKLOAD_IMAGE, rootfs.workload),
)


def archive(environment: Environment, name: str) -> Path:
    """The archive of an image that `build` makes."""
    return environment.cache.images / f"{name}.oci.tar"


def built(environment: Environment) -> list[Path]:
    """The archives of all images that were built."""
    return sorted(environment.cache.images.glob("*.oci.tar"))


def ensure_small(environment: Environment, progress: Progress) -> list[Path]:
    """The archives that every node gets at its start, built if they are missing or outdated."""
    for image in SMALL:
        if not _is_current(environment, image):
            with progress.step(f"image {image.reference}"):
                _build_small(environment, image)
    return [archive(environment, image.name) for image in SMALL]


def load(
    environment: Environment, lab: Lab, programs: dict[str, str], file: Path, progress: Progress
) -> None:
    """Import an archive into the container runtime of every node.

    With containerd the first node unpacks the images, and the others link their files. An archive
    that is not of OCI images only is unpacked by every node, and so is every one with CRI-O.

    Raises:
        LabError: A node is down, or its runtime rejects the archive.
    """
    where = state.folder(environment, lab.name)
    if not file.is_file():
        raise LabError(f"{file}: there is no such archive")
    names = [node.name for node in lab.nodes]
    runtime = RUNTIMES[lab.runtime]
    if not runtime.has_linked_layers:
        with progress.step(f"{file.name} into {', '.join(names)}"):
            for name in names:
                inside = processes.argv_inside(where.machine(name))
                subprocesses.run([*inside, *runtime.import_image(programs, str(file))])
        return
    first, *others = [
        ContainerdStore(programs["ctr"], where.machine(node.name)) for node in lab.nodes
    ]
    contents = oci_archive.read(file)

    def add(store: ContainerdStore) -> None:
        if contents is None:
            _import_whole(store, file)
            return
        for chain in contents.chains:
            store.link_layers(first, chain)
        store.import_archive(contents.without_layers)

    with progress.step(f"{file.name} into {', '.join(names)}"), ThreadPoolExecutor(2) as threads:
        _import_whole(first, file)
        list(threads.map(add, others))


def _import_whole(store: ContainerdStore, file: Path) -> None:
    with file.open("rb") as content:
        store.import_archive(content)


def _is_current(environment: Environment, image: SmallImage) -> bool:
    file, recipe = archive(environment, image.name), _recipe(environment, image)
    sources = (recipe, Path(rootfs.__file__))
    return file.exists() and all(file.stat().st_mtime >= one.stat().st_mtime for one in sources)


def _build_small(environment: Environment, image: SmallImage) -> None:
    buildah = Buildah(environment.cache, environment.variables)
    with tempfile.TemporaryDirectory(dir=environment.cache.images / "tmp") as folder:
        tree = Path(folder) / "rootfs"
        tree.mkdir()
        image.fill(tree)
        buildah.build(image.reference, _recipe(environment, image), Path(folder), {})
    buildah.save(image.reference, archive(environment, image.name))


def _recipe(environment: Environment, image: SmallImage) -> Path:
    return environment.source / "images" / f"{image.name}.Dockerfile"
