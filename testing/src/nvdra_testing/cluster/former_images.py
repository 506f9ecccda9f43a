"""Images of released versions, for tests of an update from one of them.

Such an image is today's with our packages replaced by those of the release's commit. What it has of
others, its base and the hook, stays today's.
"""

import tempfile
import zipfile
from pathlib import Path

from nvdra_lab import environment
from nvdra_lab.artifacts import project_images, wheels
from nvdra_lab.artifacts.buildah import Buildah

from nvdra_testing import releases
from nvdra_testing.cluster.lab_command import Lab

DOCKERFILE = """\
ARG BASE
FROM ${BASE}
RUN rm -r /opt/nvdra/lib/python3*/site-packages/nvdra_*
COPY ours /tmp/ours
RUN cp -r /tmp/ours/* /opt/nvdra/lib/python3*/site-packages/ && rm -r /tmp/ours
"""


def load(lab: Lab, *packages: str) -> dict[str, str]:
    """Build and load the images of the latest releases of packages; package → tag."""
    tags = {}
    for package in packages:
        release = releases.latest(package)
        tags[package] = f"released-{release.version}"
        with tempfile.TemporaryDirectory() as folder:
            archive = _build(release, tags[package], Path(folder))
            lab.run_checked("image", "load", str(archive))
    return tags


def _build(release: releases.Release, tag: str, folder: Path) -> Path:
    """The archive of a release's image, in `folder`."""
    here = environment.read()
    context = folder / "context"
    context.mkdir()
    with releases.checkout(release, folder) as tree:
        names = project_images.closure(here, release.package)
        path = f"{here.repository / '.tools/bin'}:{here.path}"
        ours = [tree / "packages" / name for name in sorted(names)]
        wheels.build(ours, folder / "wheels", path, here.variables)
    for wheel in (folder / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(context / "ours")
    (context / "Dockerfile").write_text(DOCKERFILE)
    (current,) = (
        project.reference
        for project in project_images.all_projects(here)
        if project.name == release.package
    )
    reference = f"{current.rpartition(':')[0]}:{tag}"
    buildah = Buildah(here.cache, here.variables)
    buildah.build(reference, context / "Dockerfile", context, {"BASE": current})
    found = folder / f"{release.package}.oci.tar"
    buildah.save(reference, found)
    return found
