# SPDX-License-Identifier: Apache-2.0
"""Builds images with buildah, without a daemon and with a store in the cache."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from nvdra_lab import subprocesses
from nvdra_lab.layout import CacheDir


class Buildah:
    """A buildah with its own store.

    It needs no service and changes nothing outside of the cache. The storage driver is the one that
    the machine's configuration names, or else overlay where the cache's file system can carry it.
    """

    def __init__(self, cache: CacheDir, variables: Mapping[str, str]) -> None:
        self._root = cache.images
        self._temporary = cache.images / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._variables = {
            **variables,
            "TMPDIR": str(self._temporary),
            "BUILDAH_ISOLATION": "chroot",
        }

    def build(
        self,
        reference: str,
        dockerfile: Path,
        context: Path,
        arguments: Mapping[str, str],
        *,
        labels: Mapping[str, str] | None = None,
        stage: str = "",
    ) -> None:
        """Build an image from a Dockerfile.

        Args:
            reference: Its name.
            dockerfile: The file.
            context: The directory that it copies from.
            arguments: Build arguments.
            labels: Labels that contain arguments: a step that sets one is known by the names of the
                arguments, so that a kept one would have former values.
            stage: The last stage to build, if not all.
        """
        build_arguments = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        # Equal steps leave the same layers, in one build and in the next.
        options = ["--layers", "--timestamp=0", "--tag", reference, f"--file={dockerfile}"]
        options += [f"--label={name}={value}" for name, value in (labels or {}).items()]
        options += [f"--target={stage}"] if stage else []
        self._run("bud", *options, *build_arguments, context)

    def remove_containers(self) -> None:
        """Remove what a build that was killed has left: its images could not be removed."""
        self._run("rm", "--all")

    def prune(self) -> None:
        """Remove images whose name a newer build has taken, and the steps that led to them."""
        while self._run("rmi", "--prune"):
            pass

    def save(self, reference: str, archive: Path, name: str = "") -> None:
        """Write an image to an OCI archive, by another name if one is given."""
        with tempfile.TemporaryDirectory(dir=self._temporary) as folder:
            unfinished = Path(folder) / archive.name
            self._run(
                "push",
                "--disable-compression",
                reference,
                f"oci-archive:{unfinished}:{name or reference}",
            )
            unfinished.rename(archive)

    def import_tree(self, reference: str, tree: Path) -> None:
        """Create an image with one layer, the content of `tree`."""
        container = self._run("from", "scratch").strip()
        try:
            self._run("copy", "--quiet", container, tree, "/")
            self._run("commit", "--quiet", container, reference)
        finally:
            self._run("rm", container)

    def exists(self, reference: str) -> bool:
        """Whether the store has that image."""
        return bool(self._run("images", "--quiet", "--filter", f"reference={reference}").strip())

    def output_of(self, reference: str, *argv: str) -> str:
        """The output of a command in a container of the image."""
        container = self._run("from", "--pull=false", reference).strip()
        try:
            return self._run("run", container, "--", *argv)
        finally:
            self._run("rm", container)

    def _run(self, command: str, *arguments: str | Path) -> str:
        store = [f"--root={self._root / 'store'}", f"--runroot={self._root / 'run'}"]
        return subprocesses.run(["buildah", *store, command, *arguments], env=self._variables)
