# SPDX-License-Identifier: Apache-2.0
"""Device metadata files are there as long as their claim, and as they were written."""

from pathlib import Path
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PoolName
from nvdra_gpu_plugin.cdi.metadata_files import MetadataFiles
from nvdra_gpu_plugin.devices.claim_records import (
    ClaimMetadataRecord,
    DeviceMetadataRecord,
    GpuClaimRecord,
    GpuDeviceRecord,
)


def record(uid: str, *requests: str, name: str = "", generation: int = 1) -> GpuClaimRecord:
    devices = tuple(
        GpuDeviceRecord(
            request=request,
            pool=PoolName("node-a"),
            device=DeviceName("gpu-0"),
            pci=PciAddress("0000:00:00.0"),
            uuid=GpuUUID("GPU-0"),
            cdi_id="v/c=d",
            metadata=DeviceMetadataRecord(request=request),
        )
        for request in requests or ("gpu",)
    )
    return GpuClaimRecord(
        namespace="ml",
        name=name or f"claim-{uid}",
        uid=ClaimUID(uid),
        generation="g",
        devices=devices,
        metadata=ClaimMetadataRecord(generation=generation),
    )


class Node:
    """A node's two directories.

    Attributes:
        files: The plugin's files on it.
    """

    def __init__(self, root: Path) -> None:
        self.plugin, self.cdi = root / "plugin", root / "cdi"
        self.plugin.mkdir()
        self.files = self.restarted()

    def restarted(self, *prepared: GpuClaimRecord) -> MetadataFiles:
        self.files = MetadataFiles(self.plugin, self.cdi, prepared)
        return self.files

    def path(self, claim: str, request: str = "gpu") -> Path:
        return self.plugin / f"dra-device-metadata/ml_{claim}/{request}/metadata.json"

    def remove(self, claim: GpuClaimRecord) -> None:
        self.files.remove_mounts(claim)
        self.files.remove_documents(claim)

    @property
    def left(self) -> set[str]:
        """Every file, and every directory of a claim or a request."""
        metadata = self.plugin / "dra-device-metadata"
        found = {str(path.relative_to(metadata)) for path in metadata.rglob("*")}
        return found | {path.name for path in self.cdi.glob("*")}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def is_of(path: Path, uid: str) -> bool:
    return f'"uid": "{uid}"' in path.read_text()


def modes(path: Path) -> list[int]:
    return [each.stat().st_mode & 0o777 for each in (path, path.parent, path.parent.parent)]


def test_files_come_and_go_with_their_claim(node: Node) -> None:
    claim = record("u", "a", "b")
    node.files.write(claim)
    assert node.left == {
        *("ml_claim-u", "ml_claim-u/a", "ml_claim-u/b"),
        *("ml_claim-u/a/metadata.json", "ml_claim-u/b/metadata.json"),
        *("gpu.nvidia.com_metadata_u_a.json", "gpu.nvidia.com_metadata_u_b.json"),
    }
    assert modes(node.path("claim-u", "a")) == [0o644, 0o755, 0o755]
    node.remove(claim)
    assert node.left == set()
    node.remove(claim)
    node.files.restore()
    assert node.left == set()


def test_a_file_that_is_as_it_should_be_is_not_written_again(node: Node) -> None:
    node.files.write(record("u"))
    inode = node.path("claim-u").stat().st_ino
    node.files.write(record("u"))
    node.files.restore()
    node.restarted(record("u")).restore()
    assert node.path("claim-u").stat().st_ino == inode
    reader = node.path("claim-u").open()
    node.files.write(record("u", generation=2))
    with reader:
        assert '"generation": 1' in reader.read(), "a container goes on reading what it had"
    assert '"generation": 2' in node.path("claim-u").read_text()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_removed_or_edited_is_restored(node: Node, is_restarted: bool) -> None:
    node.files.write(record("u"))
    spec = node.cdi / "gpu.nvidia.com_metadata_u_gpu.json"
    texts = [path.read_text() for path in (node.path("claim-u"), spec)]
    node.path("claim-u").write_text("{}")
    spec.unlink()
    if is_restarted:
        node.restarted(record("u"))
    node.files.restore()
    assert [path.read_text() for path in (node.path("claim-u"), spec)] == texts


def test_a_namesake_of_a_claim_that_is_still_held_has_the_path_until_it_goes(node: Node) -> None:
    old, new = record("old", name="c"), record("new", name="c")
    node.files.write(old)
    node.files.write(new)
    assert is_of(node.path("c"), "new")
    node.files.write(old)
    node.files.restore()
    assert is_of(node.path("c"), "new")
    node.remove(new)
    assert is_of(node.path("c"), "old"), "its pod may be started again"
    node.files.write(new)
    node.remove(old)
    assert is_of(node.path("c"), "new")
    assert "gpu.nvidia.com_metadata_old_gpu.json" not in node.left
    node.restarted(old, new).restore()
    assert is_of(node.path("c"), "new"), "the later one"
    node.remove(old)
    node.remove(new)
    assert node.left == set()


def test_a_namesake_with_other_requests_keeps_its_files(node: Node) -> None:
    old, new = record("old", "a", name="c"), record("new", "b", name="c")
    node.files.write(old)
    node.files.write(new)
    node.remove(old)
    assert is_of(node.path("c", "b"), "new")


def test_what_no_claim_has_is_removed_and_what_others_have_written_stays(node: Node) -> None:
    node.files.write(record("gone"))
    node.files.write(record("kept"))
    kept = {"ml_claim-kept", "ml_claim-kept/gpu", "ml_claim-kept/gpu/metadata.json"}
    kept |= {"gpu.nvidia.com_metadata_kept_gpu.json"}
    others = {"nvidia.yaml", "nic.example.com_metadata_gone_gpu.json"}
    for name in {*others, ".gpu.nvidia.com_metadata_kept_gpu.json.0123abcd"}:
        (node.cdi / name).touch()
    node.restarted(record("kept")).remove_others([record("kept")])
    assert node.left == kept | others
    node.files.remove_others([])
    assert node.left == kept | others, "it was written, and its record may be on its way"
    node.restarted().remove_others([])
    assert node.left == others


def test_a_node_without_any_directory_has_nothing_to_remove(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path / "a", tmp_path / "b")
    files.remove_others([])
    files.restore()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_the_way_is_an_error_and_the_next_attempt_writes(node: Node) -> None:
    node.path("claim-u").mkdir(parents=True)
    with pytest.raises(OSError, match="Is a directory"):
        node.files.write(record("u"))
    node.path("claim-u").rmdir()
    node.files.restore()
    assert not node.path("claim-u").exists(), "its claim was refused"
    node.files.write(record("u"))
    assert is_of(node.path("claim-u"), "u")


def test_a_file_that_cannot_be_restored_is_in_the_way_of_no_other_claim(node: Node) -> None:
    for uid in ("a", "b", "c"):
        node.files.write(record(uid))
        node.path(f"claim-{uid}").unlink()
    node.path("claim-a").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        node.files.restore()
    assert is_of(node.path("claim-b"), "b")
    assert is_of(node.path("claim-c"), "c")
    node.path("claim-a").rmdir()
    node.files.restore()
    assert is_of(node.path("claim-a"), "a")


def test_claims_with_the_longest_names_have_directories_of_their_own(node: Node) -> None:
    claims = [record(uid, name="c" * 252 + uid) for uid in ("a", "b")]
    for each in claims:
        node.files.write(each)
    directories = [name for name in node.left if name.startswith("ml_") and "/" not in name]
    assert len(set(directories)) == 2
    node.restarted(*claims).remove_others(claims)
    assert set(directories) < node.left
    for each in claims:
        node.remove(each)
    assert node.left == set()


def test_the_files_of_a_claim_without_metadata_are_nobodys(node: Node) -> None:
    without: Any = record("u").model_copy(update={"metadata": None})
    node.files.write(without)
    assert node.left == set()
