# SPDX-License-Identifier: Apache-2.0
"""What the kubelet has written down: read as kubelets write it, doubted when it is not whole."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID, PodUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.kubelet_checkpoint import (
    CHECKPOINT_FILE,
    CheckpointUnreadable,
    KubeletCheckpoint,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "dra_manager_state.json"
"""Of a kubelet 1.36.3, as it lay on the disk."""

UID = ClaimUID("8fba2cd7-22c1-4381-be85-8aedbc59e7e2")
POD = PodUID("a2386bb1-f8fe-458b-a033-bfcd2bfdfa61")
OTHER = ClaimUID("11111111-0000-4000-8000-000000000001")
EMPTY = (
    '{"Data":"{\\"kind\\":\\"DRACheckpoint\\",\\"apiVersion\\":\\"checkpoint.dra.kubelet.k8s.io/v1'
    '\\",\\"ClaimInfoStateList\\":[]}","Checksum":2361995144}'
)
"""Of a kubelet that holds nothing."""


def root(path: Path, content: str | None) -> KubeletCheckpoint:
    (path / "pods").mkdir()
    if content is not None:
        (path / CHECKPOINT_FILE).write_text(content)
    return KubeletCheckpoint(path)


def checkpoint(*claims: dict[str, Any], version: str = "checkpoint.dra.kubelet.k8s.io/v1") -> str:
    content = {"kind": "DRACheckpoint", "apiVersion": version, "ClaimInfoStateList": claims}
    data = json.dumps(content)
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})


def test_a_claim_is_read_with_its_pods_and_what_each_driver_answered(tmp_path: Path) -> None:
    claim = root(tmp_path, GOLDEN.read_text()).claims()[UID]
    assert claim.ref == ClaimRef("un2", "own-gpu-b-gpu-ckl5b", UID)
    assert claim.pods == (POD,)
    (device,) = claim.devices("gpu.nvidia.com")
    assert (device.pool, device.device, device.share_id) == ("node-2", "gpu-0", None)
    assert device.requests == ("gpu",)
    assert device.cdi_ids == ("k8s.gpu.nvidia.com/device=gpu-0-e7a171f1fa",)
    assert claim.devices("another.example.com") == ()


def test_a_claim_whose_driver_has_not_answered_yet_has_no_devices(tmp_path: Path) -> None:
    state = {
        "ClaimUID": OTHER,
        "ClaimName": "c",
        "Namespace": "ns",
        "PodUIDs": None,
        "DriverState": {"gpu.nvidia.com": {"Devices": None}},
    }
    claim = root(tmp_path, checkpoint(state)).claims()[OTHER]
    assert claim.devices("gpu.nvidia.com") == ()
    assert claim.pods == ()


def test_an_answer_that_was_added_twice_counts_once(tmp_path: Path) -> None:
    device = {"PoolName": "n", "DeviceName": "gpu-0", "RequestNames": ["r"], "CDIDeviceIDs": ["x"]}
    state = {
        "ClaimUID": OTHER,
        "ClaimName": "c",
        "Namespace": "ns",
        "PodUIDs": {POD: {}},
        "DriverState": {"gpu.nvidia.com": {"Devices": [device, device]}},
    }
    claim = root(tmp_path, checkpoint(state)).claims()[OTHER]
    assert len(claim.devices("gpu.nvidia.com")) == 1
    assert claim.pods == (POD,)


@pytest.mark.parametrize("field", ["PodUIDs", "DriverState"])
@pytest.mark.parametrize("value", [7, 0, True, False, 1.5, "text", ""])
def test_what_is_neither_a_list_nor_a_map_is_no_evidence(
    tmp_path: Path, field: str, value: Any
) -> None:
    state = {"ClaimUID": OTHER, "ClaimName": "c", "Namespace": "ns", field: value}
    evidence = root(tmp_path, checkpoint(state))
    for ask in (evidence.claims, lambda: evidence.find_users(UID, ())):
        with pytest.raises(CheckpointUnreadable, match=rf"0\.{field}: Input should be a"):
            ask()


def test_a_claim_that_the_kubelet_holds_is_used(tmp_path: Path) -> None:
    assert root(tmp_path, GOLDEN.read_text()).find_users(UID, ()) == (
        f"the kubelet holds it for pod {POD}"
    )


def test_a_claim_whose_pod_has_a_directory_may_be_used(tmp_path: Path) -> None:
    evidence = root(tmp_path, EMPTY)
    (tmp_path / "pods" / POD).mkdir()
    assert evidence.find_users(UID, [POD]) == (
        f"pod {POD} still has its directory {tmp_path / 'pods' / POD}"
    )
    assert evidence.find_users(UID, [PodUID("another")]) == ""


def test_a_claim_that_neither_knows_is_free(tmp_path: Path) -> None:
    evidence = root(tmp_path, EMPTY)
    assert evidence.claims() == {}
    assert evidence.find_users(UID, [POD]) == ""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        ("", "Invalid JSON"),
        (GOLDEN.read_text()[:200], "Invalid JSON"),
        ("[]", "should be an object"),
        (EMPTY.replace("2361995144", "2361995145"), "checksum does not match"),
        (EMPTY.replace("kind", "Kind"), "checksum does not match"),
        (checkpoint(version="checkpoint.dra.kubelet.k8s.io/v2"), "its version is"),
        (checkpoint({"ClaimName": "c"}), "ClaimInfoStateList.0.ClaimUID: Field required"),
    ],
)
def test_what_is_not_whole_or_not_known_is_no_evidence(
    tmp_path: Path, content: str | None, says: str
) -> None:
    evidence = root(tmp_path, content)
    for ask in (evidence.claims, lambda: evidence.find_users(UID, ())):
        with pytest.raises(CheckpointUnreadable, match=says):
            ask()


def test_a_root_that_is_not_the_kubelets_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT_FILE).write_text(EMPTY)
    with pytest.raises(CheckpointUnreadable, match="pods: there is no such directory"):
        KubeletCheckpoint(tmp_path).find_users(UID, ())


def test_directories_that_cannot_be_looked_at_are_no_evidence(tmp_path: Path) -> None:
    evidence = root(tmp_path, EMPTY)
    with pytest.raises(CheckpointUnreadable, match="File name too long"):
        evidence.find_users(UID, [PodUID("p" * 300)])
    (tmp_path / "pods").rmdir()
    (tmp_path / "pods").symlink_to("pods")
    with pytest.raises(CheckpointUnreadable, match="Too many levels of symbolic links"):
        evidence.find_users(UID, [])
