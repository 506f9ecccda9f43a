# SPDX-License-Identifier: Apache-2.0
"""What an archive has besides the layers of its images."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from nvdra_lab.artifacts import oci_archive

INDEX = "application/vnd.oci.image.index.v1+json"


class Archive:
    """An OCI archive in the making."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
        self.manifests: list[dict[str, Any]] = []

    def blob(self, content: bytes, media_type: str = "") -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def image(
        self, *diff_ids: str, media_type: str = oci_archive.MANIFEST, reference: str = ""
    ) -> None:
        config = self.blob(json.dumps({"rootfs": {"diff_ids": diff_ids}}).encode())
        layers = [self.blob(f"layer {each}".encode()) for each in diff_ids]
        manifest = json.dumps({"config": config, "layers": layers}).encode()
        found = self.blob(manifest, media_type)
        if reference:
            found["annotations"] = {"org.opencontainers.image.ref.name": reference}
        self.manifests.append(found)

    def write(self, path: Path) -> Path:
        index = json.dumps({"schemaVersion": 2, "manifests": self.manifests}).encode()
        with tarfile.open(path, "w") as archive:
            for name, content in {**self.files, "index.json": index}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return path


def test_the_archive_without_layers_has_everything_else(tmp_path: Path) -> None:
    archive = Archive()
    archive.image("sha256:a", "sha256:b", reference="docker.io/nvdra/one:1")
    archive.image("sha256:a", "sha256:c")
    contents = oci_archive.read(archive.write(tmp_path / "a.tar"))
    assert contents is not None
    assert contents.references == ("docker.io/nvdra/one:1", "")
    first, second = contents.chains
    assert len(first) == len(second) == 2
    assert first[0] == second[0] == "sha256:a"
    assert first[1] != second[1]
    with tarfile.open(fileobj=io.BytesIO(contents.without_layers)) as written:
        kept = {name: written.extractfile(name) for name in written.getnames()}
        read = {name: file.read() for name, file in kept.items() if file is not None}
    dropped = archive.files.keys() - read.keys()
    assert sorted(archive.files[name] for name in dropped) == [
        b"layer sha256:a",
        b"layer sha256:b",
        b"layer sha256:c",
    ]
    assert all(archive.files[name] == read[name] for name in archive.files.keys() - dropped)


def test_chain_ids_are_those_of_the_specification() -> None:
    one, two, three = (f"sha256:{hashlib.sha256(each).hexdigest()}" for each in (b"1", b"2", b"3"))
    upper = "sha256:" + hashlib.sha256(f"{one} {two}".encode()).hexdigest()
    top = "sha256:" + hashlib.sha256(f"{upper} {three}".encode()).hexdigest()
    assert oci_archive.chain_ids([one, two, three]) == (one, upper, top)
    assert oci_archive.chain_ids([]) == ()


def test_an_archive_of_another_kind_is_for_every_node_itself(tmp_path: Path) -> None:
    nested = Archive()
    nested.image("sha256:a", media_type=INDEX)
    assert oci_archive.read(nested.write(tmp_path / "nested.tar")) is None
    with tarfile.open(tmp_path / "docker.tar", "w") as archive:
        entry = tarfile.TarInfo("manifest.json")
        archive.addfile(entry, io.BytesIO())
    assert oci_archive.read(tmp_path / "docker.tar") is None
