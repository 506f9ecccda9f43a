# SPDX-License-Identifier: Apache-2.0
"""The images in one node's containerd, and how it takes over layers from another node's.

A layer that is unpacked never changes: a container writes into a directory of its own above it. So
nodes can share a layer's files by hard links. Each containerd still creates the layer by itself
(prepare, commit), so that its database knows it, and its garbage collector only removes links.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from nvdra_lab import subprocesses
from nvdra_lab.kubernetes.runtimes import CTR_IMPORT, CTR_NAMESPACE
from nvdra_lab.layout import MachineDir
from nvdra_lab.machines import processes


class ContainerdStore:
    """The images and layers of one node, reached through its containerd."""

    def __init__(self, ctr: str, folder: MachineDir) -> None:
        """Find the node.

        Raises:
            LabError: It does not run.
        """
        self._argv = (*processes.argv_inside(folder), ctr)
        self._folder = folder

    def import_archive(self, archive: bytes | IO[bytes]) -> None:
        """Import an archive; layers that are there already need not be in it."""
        subprocesses.run([*self._argv, *CTR_IMPORT, "-"], stdin=archive)

    def link_layers(self, other: "ContainerdStore", chain: Sequence[str]) -> None:
        """Create the layers of an image that are missing, with the files of another node.

        Args:
            other: A node that has all layers of the image, on the same file system.
            chain: The chain IDs of the layers, from the lowest on.
        """
        known = self._layers()
        missing = [layer for layer in chain if layer not in known]
        if not missing:
            return
        with other._directories(chain) as directories:
            parent = ""
            for layer, files in zip(chain, directories, strict=True):
                if layer in missing:
                    self._create_layer(layer, parent, files)
                parent = layer

    def _create_layer(self, layer: str, parent: str, files: Path) -> None:
        key, mount = self._prepare(parent)
        target = self._folder.on_host(written_directory(mount))
        # With its owner, mode and extended attributes, which overlayfs reads.
        subprocesses.run(["cp", "--archive", "--link", "--force", f"{files}/.", target])
        self._snapshots("commit", layer, key)

    @contextlib.contextmanager
    def _directories(self, chain: Sequence[str]) -> Iterator[list[Path]]:
        """The layers' directories on the host, from the lowest on; they stay during the block."""
        key, mount = self._prepare(chain[-1])
        try:
            yield [self._folder.on_host(path) for path in lower_directories(mount)]
        finally:
            self._snapshots("rm", key)

    def _prepare(self, parent: str) -> tuple[str, dict[str, Any]]:
        """A layer in the making, which the garbage collector leaves alone: its key and its mount.

        A view would do for reading, but the garbage collector removes it at once.
        """
        key = f"lab-{uuid.uuid4().hex}"
        below = [parent] if parent else []
        (mount,) = json.loads(self._snapshots("prepare", "--mounts", key, *below))
        return key, mount

    def _layers(self) -> set[str]:
        lines = self._snapshots("ls").splitlines()[1:]
        return {line.split()[0] for line in lines}

    def _snapshots(self, *arguments: str) -> str:
        return subprocesses.run([*self._argv, CTR_NAMESPACE, "snapshots", *arguments])


def written_directory(mount: dict[str, Any]) -> str:
    """The directory into which a layer in the making is written."""
    return str(mount["Source"]) if mount["Type"] == "bind" else _options(mount)["upperdir"]


def lower_directories(mount: dict[str, Any]) -> list[str]:
    """The directories of the layers below one in the making, from the lowest on."""
    return list(reversed(_options(mount)["lowerdir"].split(":")))


def _options(mount: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in mount["Options"])}
