"""The project's own images: every package that has a Dockerfile. Effects."""

import dataclasses
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nvdra_lab import bases, wheels
from nvdra_lab.buildah import Buildah
from nvdra_lab.environment import Environment
from nvdra_lab.progress import Progress

SOURCES = ("*.py", "py.typed", "pyproject.toml", "README.md", "Dockerfile")


@dataclasses.dataclass(frozen=True)
class Project:
    """A package that becomes an image of the same name and version."""

    name: str
    version: str
    folder: Path

    @property
    def reference(self) -> str:
        """The image's name, with the registry that short names mean."""
        return f"docker.io/nvdra/{self.name}:{self.version}"


def every(environment: Environment) -> list[Project]:
    """The packages that have a Dockerfile."""
    files = sorted((environment.repository / "packages").glob("*/Dockerfile"))
    return [_project(file.parent) for file in files]


def build(
    environment: Environment, wanted_base: str, hook: Path, progress: Progress
) -> dict[str, Path]:
    """Build what changed since it was built last; image reference → OCI archive.

    Args:
        environment: Where the checkout and the cache are.
        wanted_base: "auto" or an image.
        hook: nvidia-cdi-hook, which goes into the images.
        progress: Told of every build.

    Raises:
        LabError: The words of the program that failed.
    """
    cache = environment.cache.images
    buildah = Buildah(environment.cache, environment.variables)
    archives = {}
    projects = every(environment)
    base = bases.choose(buildah, wanted_base, cache / "tmp", progress)
    for project in projects:
        archive = cache / f"{project.name}.oci.tar"
        stamp, digest = cache / f"{project.name}.digest", _digest(environment, base, hook)
        archives[project.reference] = archive
        if archive.exists() and stamp.exists() and stamp.read_text() == digest:
            progress.say(f"✓ image {project.reference} is up to date")
            continue
        title = f"image {project.name}:{project.version} on {base.rpartition('/')[2]}"
        with progress.step(title, "about 1 min"):
            _build(environment, buildah, project, base, hook)
            buildah.save(project.reference, archive)
            stamp.write_text(digest)
            buildah.prune()
    return archives


def version_in(text: str) -> str:
    """The version of an `__about__.py`."""
    match = re.search(r'__version__ = "([^"]+)"', text)
    assert match is not None, text
    return match[1]


def _project(folder: Path) -> Project:
    (about,) = folder.glob("src/*/__about__.py")
    return Project(folder.name, version_in(about.read_text()), folder)


def _build(
    environment: Environment, buildah: Buildah, project: Project, base: str, hook: Path
) -> None:
    """A context of the Dockerfile, wheels for the base's Python and the hook; then the image."""
    command = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = buildah.output_of(base, "python3", "-c", command).strip()
    path = f"{environment.repository / '.tools/bin'}:{environment.path}"
    with tempfile.TemporaryDirectory(dir=environment.cache.images / "tmp") as folder:
        ours, context = Path(folder) / "ours", Path(folder) / "context"
        packages = sorted(file.parent for file in _packages(environment))
        wheels.build(packages, ours, path, environment.variables)
        wheels.collect(
            f"{project.name}=={project.version}",
            ours,
            context / "wheels",
            python,
            environment.repository / "requirements.lock",
            path,
            environment.variables,
        )
        shutil.copy(hook, context / hook.name)
        dockerfile = project.folder / "Dockerfile"
        buildah.build(project.reference, dockerfile, context, {"BASE": base})


def _digest(environment: Environment, base: str, hook: Path) -> str:
    digest = hashlib.sha256(f"{base} {hook}".encode())
    for file in [environment.repository / "requirements.lock", *_sources(environment)]:
        digest.update(f"{file.relative_to(environment.repository)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources(environment: Environment) -> Iterator[Path]:
    """What goes into wheels and images; tests and changelogs do not."""
    for project in sorted(file.parent for file in _packages(environment)):
        for pattern in SOURCES[2:]:
            yield from sorted(project.glob(pattern))
        for pattern in SOURCES[:2]:
            yield from sorted((project / "src").rglob(pattern))


def _packages(environment: Environment) -> Iterator[Path]:
    return (environment.repository / "packages").glob("*/pyproject.toml")
