# SPDX-License-Identifier: Apache-2.0
"""Images of released versions, for tests of an update from one of them.

Such an image is built from the packages of the release's commit. What it has of others, its base,
the hook and how it is assembled are today's.
"""

import tempfile
from pathlib import Path

from nvdra_lab import environment, state
from nvdra_lab.artifacts import base_images, binaries, image_context, project_images
from nvdra_lab.artifacts.buildah import Buildah
from nvdra_lab.progress import Progress

from nvdra_testing import releases
from nvdra_testing.cluster.lab_command import Lab


def load(lab: Lab, *packages: str) -> dict[str, str]:
    """Build and load the images of the latest releases of packages; package → tag."""
    tags, progress, lock = {}, Progress(), environment.read().cache.images_lock
    for package in packages:
        release = releases.latest(package)
        tags[package] = f"released-{release.version}"
        with tempfile.TemporaryDirectory() as folder:
            with state.locked(lock, progress, "another command that builds images"):
                archive = _build(release, tags[package], Path(folder), progress)
            lab.run_checked("image", "load", str(archive))
    return tags


def _build(release: releases.Release, tag: str, folder: Path, progress: Progress) -> Path:
    """The archive of a release's image, in `folder`."""
    here = environment.read()
    context = folder / "context"
    buildah = Buildah(here.cache, here.variables)
    base = base_images.choose(buildah, "auto", here.cache.images / "tmp", progress)
    python = project_images.python_of(buildah, base)
    hook = binaries.cdi_hook(here, progress)
    with releases.checkout(release, folder) as tree:
        image_context.make(here, context, [release.package], python, hook, tree)
    (project,) = (
        project for project in project_images.all_projects(here) if project.name == release.package
    )
    reference = f"{project.reference.rpartition(':')[0]}:{tag}"
    arguments = project_images.build_arguments(here, release.version, base)
    arguments["REVISION"] = release.commit
    labels = project_images.labels_of(arguments)
    buildah.build(reference, project.folder / "Dockerfile", context, arguments, labels=labels)
    found = folder / f"{release.package}.oci.tar"
    buildah.save(reference, found)
    return found
