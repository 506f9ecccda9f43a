# SPDX-License-Identifier: Apache-2.0
"""Reads OCI archives: the layers of their images, and the archive without them.

Source: OCI image layout specification 1.1; image configuration, "Layer ChainID".
"""

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME = "org.opencontainers.image.ref.name"


@dataclasses.dataclass(frozen=True)
class Contents:
    """What an archive has besides the files of its images.

    Attributes:
        references: The names of its images.
        chains: For each image the chain IDs of its layers, from the lowest on. containerd keeps a
            layer that is unpacked under this name.
        without_layers: The archive with its index, manifests and configurations only.
    """

    references: tuple[str, ...]
    chains: tuple[tuple[str, ...], ...]
    without_layers: bytes


def read(file: Path) -> Contents | None:
    """The contents of an archive; None if it has anything but plain OCI images."""
    with tarfile.open(file) as archive:
        members = {member.name.removeprefix("./"): member for member in archive.getmembers()}
        if not {"index.json", "oci-layout"} <= members.keys():
            return None

        def content(name: str) -> bytes:
            found = archive.extractfile(members[name])
            assert found is not None, name
            return found.read()

        kept, chains = {name: content(name) for name in ("oci-layout", "index.json")}, []
        entries = json.loads(kept["index.json"])["manifests"]
        for entry in entries:
            if entry.get("mediaType") != MANIFEST:
                return None
            manifest_name = _blob(entry)
            kept[manifest_name] = content(manifest_name)
            config_name = _blob(json.loads(kept[manifest_name])["config"])
            kept[config_name] = content(config_name)
            chains.append(chain_ids(json.loads(kept[config_name])["rootfs"]["diff_ids"]))
    references = tuple(each.get("annotations", {}).get(NAME, "") for each in entries)
    return Contents(references, tuple(chains), _tar(kept))


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """The chain ID of every layer: it names a layer together with all those below it."""
    return tuple(accumulate(diff_ids, _chain_id))


def _chain_id(below: str, diff_id: str) -> str:
    return f"sha256:{hashlib.sha256(f'{below} {diff_id}'.encode()).hexdigest()}"


def _blob(descriptor: dict[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
