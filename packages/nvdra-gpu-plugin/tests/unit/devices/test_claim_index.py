# SPDX-License-Identifier: Apache-2.0
"""Under which numbers prepared claims hold GPUs."""

from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PoolName
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord


def claim(
    device: str, uuid: str, *, admin: bool = False, parent: str = "", name: str = "a"
) -> GpuClaimRecord:
    held = GpuDeviceRecord(
        request="gpu",
        pool=PoolName("node-a"),
        device=DeviceName(device),
        pci=PciAddress(""),
        uuid=GpuUUID(uuid),
        is_admin=admin,
        parent_uuid=GpuUUID(parent),
        cdi_id=f"k8s.gpu.nvidia.com/device={device}-0123456789",
    )
    return GpuClaimRecord(
        namespace="ml", name=name, uid=ClaimUID(f"uid-{name}"), generation="580", devices=(held,)
    )


def held(*records: GpuClaimRecord) -> dict[str, int]:
    return {str(gpu): number for gpu, number in GpuClaimIndex(records).held_numbers().items()}


def test_a_gpu_is_held_by_the_number_in_the_claims_name_of_it() -> None:
    assert held(claim("gpu-2", "GPU-1")) == {"GPU-1": 2}
    assert held() == {}


def test_a_gpu_is_held_by_the_number_in_the_name_of_a_part() -> None:
    part = claim("gpu-3-mig-1g10gb-19-4", "MIG-1", parent="GPU-1")
    assert held(part) == {"GPU-1": 3}


def test_a_monitor_holds_a_number_that_no_other_claim_holds() -> None:
    monitor = claim("gpu-2", "GPU-1", admin=True, name="a")
    assert held(monitor) == {"GPU-1": 2}
    assert held(monitor, claim("gpu-2", "GPU-5", name="b")) == {"GPU-5": 2}
    assert held(monitor, claim("gpu-0", "GPU-1", name="b")) == {"GPU-1": 0}


def test_a_device_whose_gpu_is_not_known_holds_no_number() -> None:
    assert held(claim("gpu-2", "")) == {}
