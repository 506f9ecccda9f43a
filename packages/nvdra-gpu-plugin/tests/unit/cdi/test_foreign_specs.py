# SPDX-License-Identifier: Apache-2.0
"""The files of the reference driver: kept while a claim of it is prepared, and removed then."""

from pathlib import Path

from nvdra_api.ids import ClaimUID, DeviceName, PciAddress, PoolName
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_gpu_plugin.cdi.foreign_specs import ForeignSpecs
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_testing.hardware.gpus import h100

KIND = "k8s.gpu.nvidia.com/claim"
UID = ClaimUID("5f0b7c1e-2d64-4a0f-9e55-7c0d9a4f31b2")


def record(uid: ClaimUID = UID, cdi_id: str = "") -> GpuClaimRecord:
    device = GpuDeviceRecord(
        request="gpu",
        pool=PoolName("node-a"),
        device=DeviceName("gpu-0"),
        pci=PciAddress("0000:00:00.0"),
        uuid=h100(0).uuid,
        cdi_id=cdi_id or f"{KIND}={uid}-gpu-0",
    )
    return GpuClaimRecord(namespace="ml", name="c", uid=uid, generation="", devices=(device,))


def spec(*devices: str) -> Spec:
    edits = ContainerEdits(env=("A=b",))
    return Spec(KIND, tuple(Device(name, edits) for name in devices), version="0.5.0")


def test_a_claim_is_foreign_by_the_kind_of_its_names() -> None:
    assert record().is_foreign
    assert not record(cdi_id="k8s.gpu.nvidia.com/device=gpu-0-0123456789").is_foreign


def test_a_spec_counts_if_it_has_the_claims_names(tmp_path: Path) -> None:
    specs = ForeignSpecs(tmp_path, tmp_path)
    assert not specs.has(record())
    specs.write(UID, spec("another"))
    assert not specs.has(record())
    specs.write(UID, spec(f"{UID}-gpu-0"))
    assert specs.has(record())
    assert specs.has(record())
    path = tmp_path / f"k8s.gpu.nvidia.com-claim_{UID}.yaml"
    path.write_text("damaged")
    assert not specs.has(record())


def test_what_no_claim_needs_is_removed_and_the_checkpoint_with_the_last(tmp_path: Path) -> None:
    specs, other = ForeignSpecs(tmp_path, tmp_path), ClaimUID("other")
    (tmp_path / "checkpoint.json").touch()
    (tmp_path / "nvidia.yaml").touch()
    for uid in (UID, other):
        specs.write(uid, spec(f"{uid}-gpu-0"))
    specs.remove_others({UID})
    left = {"checkpoint.json", "nvidia.yaml"}
    assert {path.name for path in tmp_path.iterdir()} == {
        *left,
        f"k8s.gpu.nvidia.com-claim_{UID}.yaml",
    }
    for _ in range(2):
        specs.remove_others(())
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia.yaml"]
