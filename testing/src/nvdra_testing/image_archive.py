# SPDX-License-Identifier: Apache-2.0
"""What is in an image, read from its OCI archive: files, links, contents, configuration."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1024**2


@dataclass(frozen=True)
class Image:
    """An image, unpacked in memory as far as tests ask for.

    Attributes:
        config: Its configuration: user, entry point, environment, labels.
        architecture: For instance amd64.
        layers: The digests of its layers, from the lowest on.
        sizes: Path → bytes, of files.
        modes: Path → permissions, of files.
        links: Path → where a symbolic link leads.
        texts: Path → content, of the files that were asked for.
    """

    config: dict[str, Any]
    architecture: str
    layers: tuple[str, ...]
    sizes: dict[str, int]
    modes: dict[str, int]
    links: dict[str, str]
    texts: dict[str, str]

    def names_in(self, *folders: str) -> set[str]:
        """The names of files and links right below some directories."""
        paths = [*self.sizes, *self.links]
        return {path.rpartition("/")[2] for path in paths if path.rpartition("/")[0] in folders}

    def mib(self, folder: str = "") -> float:
        """The size of all files below a directory."""
        return sum(size for path, size in self.sizes.items() if path.startswith(folder)) / MIB


def read(file: Path, *wanted: str) -> Image:
    """Read an archive with one image, whose layers hide nothing of each other.

    Args:
        file: The archive.
        *wanted: Ends of the paths of files whose content is read.
    """
    sizes, modes, links, texts = {}, {}, {}, {}
    with tarfile.open(file) as archive:
        (entry,) = _json(archive, "index.json")["manifests"]
        manifest = _json(archive, _blob(entry))
        found = _json(archive, _blob(manifest["config"]))
        for layer in manifest["layers"]:
            content = archive.extractfile(_blob(layer))
            assert content is not None
            with tarfile.open(fileobj=content) as files:
                for member in files:
                    path = member.name.removeprefix("./")
                    assert not path.rpartition("/")[2].startswith(".wh."), path
                    if member.issym():
                        links[path] = member.linkname
                    elif member.isreg():
                        assert path not in sizes, f"two layers have {path}"
                        sizes[path], modes[path] = member.size, member.mode
                        if path.endswith(wanted):
                            texts[path] = _text(files, member)
    layers = tuple(found["rootfs"]["diff_ids"])
    return Image(found["config"], found["architecture"], layers, sizes, modes, links, texts)


def _text(files: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = files.extractfile(member)
    assert content is not None
    return content.read().decode()


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_text(archive, archive.getmember(name)))
    return found


def _blob(descriptor: dict[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"
