"""Builds the project's own images: one for every package with a Dockerfile.

All images share one build context: our wheels are built once, and their dependencies are downloaded
once. An image is built again when its package or one of its dependencies among ours has changed.
"""

import dataclasses
import hashlib
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nvdra_lab.artifacts import base_images, wheels
from nvdra_lab.artifacts.buildah import Buildah
from nvdra_lab.environment import Environment
from nvdra_lab.progress import Progress


@dataclasses.dataclass(frozen=True)
class Project:
    """A package that becomes an image of the same name and version."""

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
    """Build what has changed since the last build; image reference → OCI archive.

    Args:
        environment: Where the checkout and the cache are.
        wanted_base: "auto" or an image.
        hook: nvidia-cdi-hook, which is copied into the images.
        progress: Reports every build.

    Raises:
        LabError: A program failed; the message has its output.
    """
    buildah = Buildah(environment.cache, environment.variables)
    projects = all_projects(environment)
    base = base_images.choose(buildah, wanted_base, environment.cache.images / "tmp", progress)
    digests = {project.name: _digest(environment, project, base, hook) for project in projects}
    outdated = []
    for project in projects:
        if _is_current(environment, project, digests[project.name]):
            progress.print_line(f"✓ image {project.reference} is up to date")
        else:
            outdated.append(project)
    if outdated:
        with tempfile.TemporaryDirectory(dir=environment.cache.images / "tmp") as folder:
            with progress.step("wheels of the images", "about 20 s"):
                context = _context(environment, buildah, Path(folder), outdated, base, hook)
            for project in outdated:
                title = f"image {project.name}:{project.version} on {base.rpartition('/')[2]}"
                with progress.step(title, "about 20 s"):
                    dockerfile = project.folder / "Dockerfile"
                    buildah.build(project.reference, dockerfile, context, {"BASE": base})
                    buildah.save(project.reference, _archive(environment, project))
                    _stamp(environment, project).write_text(digests[project.name])
        buildah.prune()
    return {project.reference: _archive(environment, project) for project in projects}


def version_in(text: str) -> str:
    """The version of an `__about__.py`."""
    match = re.search(r'__version__ = "([^"]+)"', text)
    assert match is not None, text
    return match[1]


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


def _context(
    environment: Environment,
    buildah: Buildah,
    folder: Path,
    projects: Sequence[Project],
    base: str,
    hook: Path,
) -> Path:
    """The build context: wheels for the Python of the base image, and the hook."""
    command = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = buildah.output_of(base, "python3", "-c", command).strip()
    path = f"{environment.repository / '.tools/bin'}:{environment.path}"
    ours, context = folder / "ours", folder / "context"
    needed = {package for project in projects for package in closure(environment, project.name)}
    folders = [environment.repository / "packages" / name for name in sorted(needed)]
    wheels.build(folders, ours, path, environment.variables)
    wheels.collect(
        [f"{project.name}=={project.version}" for project in projects],
        ours,
        context / "wheels",
        python,
        environment.repository / "requirements.lock",
        path,
        environment.variables,
    )
    shutil.copy(hook, context / hook.name)
    return context


def closure(environment: Environment, name: str) -> set[str]:
    """A package of ours with all packages of ours that it depends on, from pyproject.toml."""
    packages = environment.repository / "packages"
    found: set[str] = set()
    left = [name]
    while left:
        package = left.pop()
        found.add(package)
        project = tomllib.loads((packages / package / "pyproject.toml").read_text())["project"]
        lines = [*project.get("dependencies", ()), *_extras(project)]
        needed = {match[0] for line in lines if (match := re.match(r"[\w-]+", line))}
        left += [each for each in needed - found if (packages / each).is_dir()]
    return found


def _extras(project: dict[str, dict[str, list[str]]]) -> Iterable[str]:
    return (line for lines in project.get("optional-dependencies", {}).values() for line in lines)


def _digest(environment: Environment, project: Project, base: str, hook: Path) -> str:
    digest = hashlib.sha256(f"{base} {hook}".encode())
    dockerfile = project.folder / "Dockerfile"
    lock = environment.repository / "requirements.lock"
    for file in [lock, dockerfile, *_sources(environment, closure(environment, project.name))]:
        digest.update(f"{file.relative_to(environment.repository)}\0".encode())
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
