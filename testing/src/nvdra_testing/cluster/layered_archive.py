# SPDX-License-Identifier: Apache-2.0
"""An OCI archive for tests: the lab's workload image with one more layer, which no node has yet."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Final

from nvdra_lab import environment

REFERENCE: Final = "docker.io/nvdra/layered:1"
MARKER: Final = "from the archive\n"
"""The text of the file `/marker`, which has mode 0640 and belongs to user 7."""

_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"


def write(file: Path) -> Path:
    """Write the archive, and return its path."""
    with tarfile.open(environment.read().cache.images / "workload.oci.tar") as archive:
        blobs = {each.name: archive.extractfile(each) for each in archive if each.isfile()}
        files = {name: content.read() for name, content in blobs.items() if content is not None}
    index = json.loads(files["index.json"])
    (image,) = index["manifests"]
    manifest = json.loads(files[_name(image["digest"])])
    config = json.loads(files[_name(manifest["config"]["digest"])])
    layer = _blob(files, _tar({"marker": MARKER.encode()}), _LAYER)
    config["rootfs"]["diff_ids"].append(layer["digest"])
    config.pop("history", None)
    manifest["layers"].append(layer)
    manifest["config"] = _blob(files, _json(config), manifest["config"]["mediaType"])
    changed = _blob(files, _json(manifest), image["mediaType"])
    changed["annotations"] = {"org.opencontainers.image.ref.name": REFERENCE}
    files["index.json"] = _json({**index, "manifests": [changed]})
    file.write_bytes(_tar(files))
    return file


def _blob(files: dict[str, bytes], content: bytes, media_type: str) -> dict[str, Any]:
    """Add a blob to the archive's files, and return its descriptor."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    files[_name(digest)] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid = len(content), 0o640, 7
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
