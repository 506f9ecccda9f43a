# SPDX-License-Identifier: Apache-2.0
"""Builds the project's own images: one for every package with a Dockerfile.

All images share one build context: our wheels are built once, and their dependencies are downloaded
once. An image is built again when its package or one of its dependencies among ours has changed, or
what any package depends on.
What is built here has the same Dockerfiles and the same context as what is published.
"""

import dataclasses
import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nvdra_lab import state, subprocesses
from nvdra_lab.artifacts import base_images, image_context
from nvdra_lab.artifacts.buildah import Buildah
from nvdra_lab.environment import Environment
from nvdra_lab.progress import Progress

SHARED = "localhost/nvdra/shared:built"
"""The first stages of the Dockerfiles, with a name so that they stay for the next build."""
UNPUBLISHED = "unpublished"
"""Where the source of an image is that nobody can pull."""


@dataclasses.dataclass(frozen=True)
class Project:
    """A package that becomes an image of the same name and version.

    Attributes:
        name: The package's name.
        version: As charts write it, with `-dev` for a tree that was not released.
        folder: Where the package is.
    """

    name: str
    version: str
    folder: Path

    @property
    def reference(self) -> str:
        """The image's name with the registry of short names."""
        return f"docker.io/nvdra/{self.name}:{self.version}"


def all_projects(environment: Environment) -> list[Project]:
    """The packages that have a Dockerfile."""
    files = sorted((environment.repository / "packages").glob("*/Dockerfile"))
    return [_project(file.parent) for file in files]


def build(
    environment: Environment, wanted_base: str, hook: Path, progress: Progress
) -> dict[str, Path]:
    """Build what has changed since the last build; image reference → OCI archive, of the base too.

    Args:
        environment: Where the checkout and the cache are.
        wanted_base: "auto" or an image.
        hook: nvidia-cdi-hook, which is copied into the images.
        progress: Reports every build.

    Raises:
        LabError: A program failed; the message has its output.
    """
    with state.locked(
        environment.cache.images_lock, progress, "another command that builds images"
    ):
        return _build(environment, wanted_base, hook, progress)


def _build(
    environment: Environment, wanted_base: str, hook: Path, progress: Progress
) -> dict[str, Path]:
    buildah = Buildah(environment.cache, environment.variables)
    projects = all_projects(environment)
    base = base_images.choose(buildah, wanted_base, environment.cache.images / "tmp", progress)
    python = _save_base(environment, buildah, base, progress)
    digests = {project.name: _digest(environment, project, base, hook) for project in projects}
    outdated = []
    for project in projects:
        if _is_current(environment, project, digests[project.name]):
            progress.print_line(f"✓ image {project.reference} is up to date")
        else:
            outdated.append(project)
    if outdated:
        buildah.remove_containers()
        with tempfile.TemporaryDirectory(dir=environment.cache.images / "tmp") as folder:
            with progress.step("wheels of the images", "about 20 s"):
                context = Path(folder) / "context"
                names = [project.name for project in projects]  # what all share is the same layer
                image_context.make(environment, context, names, python_of(buildah, base), hook)
            with progress.step("what all images share", "about 15 s"):
                dockerfile = projects[0].folder / "Dockerfile"
                buildah.build(SHARED, dockerfile, context, {"BASE": base}, stage="libraries")
            for project in outdated:
                title = f"image {project.name}:{project.version} on {base.rpartition('/')[2]}"
                with progress.step(title, "about 8 s"):
                    dockerfile = project.folder / "Dockerfile"
                    arguments = build_arguments(environment, project.version, base)
                    labels = labels_of(arguments)
                    buildah.build(project.reference, dockerfile, context, arguments, labels=labels)
                    buildah.save(project.reference, _archive(environment, project))
                    _stamp(environment, project).write_text(digests[project.name])
        buildah.prune()
    built = {project.reference: _archive(environment, project) for project in projects}
    return {base_images.DEFAULT: python, **built}


def _save_base(environment: Environment, buildah: Buildah, base: str, progress: Progress) -> Path:
    """Save the base as well: quickstarts that need Python use what any cluster can pull."""
    archive = environment.cache.images / "python.oci.tar"
    stamp = archive.with_name("python.digest")
    if archive.exists() and stamp.exists() and stamp.read_text() == base:
        return archive
    with progress.step(f"image {base_images.DEFAULT}", "about 10 s"):
        buildah.save(base, archive, base_images.DEFAULT)
        stamp.write_text(base)
    return archive


def version_in(text: str) -> str:
    """The version of an `__about__.py` as charts write it: "1.2.3.dev0" is 1.2.3-dev."""
    match = re.search(r'__version__ = "([^"]+)"', text)
    assert match is not None, text
    return re.sub(r"\.dev\d+$", "-dev", match[1])


def _project(folder: Path) -> Project:
    (about,) = folder.glob("src/*/__about__.py")
    return Project(folder.name, version_in(about.read_text()), folder)


def _archive(environment: Environment, project: Project) -> Path:
    return environment.cache.images / f"{project.name}.oci.tar"


def _stamp(environment: Environment, project: Project) -> Path:
    """The file with the digest from which the archive was built."""
    return environment.cache.images / f"{project.name}.digest"


def _is_current(environment: Environment, project: Project, digest: str) -> bool:
    stamp = _stamp(environment, project)
    is_built = _archive(environment, project).exists() and stamp.exists()
    return is_built and stamp.read_text() == digest


def build_arguments(environment: Environment, version: str, base: str) -> dict[str, str]:
    """The arguments of a Dockerfile; the labels of the image have them."""
    git = ["git", "-C", str(environment.repository)]
    revision = subprocesses.run([*git, "rev-parse", "HEAD"]).strip()
    is_changed = bool(subprocesses.run([*git, "status", "--porcelain"]).strip())
    return {
        "BASE": base,
        "VERSION": version,
        "REVISION": f"{revision}-modified" if is_changed else revision,
        "SOURCE": environment.variables.get("SOURCE", UNPUBLISHED),
    }


def labels_of(arguments: Mapping[str, str]) -> dict[str, str]:
    """The labels of an image that contain arguments of its Dockerfile."""
    names = ("VERSION", "REVISION", "SOURCE")
    return {f"org.opencontainers.image.{name.lower()}": arguments[name] for name in names}


def python_of(buildah: Buildah, base: str) -> str:
    """The version of a base image's Python, "3.12"."""
    command = "import sys; print('%d.%d' % sys.version_info[:2])"
    return buildah.output_of(base, "python3", "-c", command).strip()


def _digest(environment: Environment, project: Project, base: str, hook: Path) -> str:
    digest = hashlib.sha256(f"{base} {hook}".encode())
    repository = environment.repository
    files = [
        project.folder / "Dockerfile",
        *sorted(repository.glob("requirements.images.*")),
        *sorted((repository / "images").glob("*.py")),
        *sorted(filter(Path.is_file, (repository / "images" / "hook_licenses").rglob("*"))),
        # The shared layer has what all images depend on.
        *sorted(repository.glob("packages/*/pyproject.toml")),
        Path(image_context.__file__),
        *_sources(environment, image_context.closure(repository / "packages", project.name)),
    ]
    for file in files:
        digest.update(f"{file.relative_to(repository)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources(environment: Environment, packages: Iterable[str]) -> Iterator[Path]:
    """The files that go into wheels, without tests and changelogs."""
    for package in sorted(packages):
        folder = environment.repository / "packages" / package
        yield folder / "pyproject.toml"
        yield from sorted(folder.glob("README.md"))
        for pattern in ("*.py", "py.typed"):
            yield from sorted((folder / "src").rglob(pattern))
