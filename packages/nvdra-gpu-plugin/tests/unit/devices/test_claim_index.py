"""Which devices prepared claims hold under names that they do not have any more."""

from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, PciAddress, PoolName
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_testing.hardware.gpus import h100, in_mig_mode

NODE = Inventory((h100(0), h100(1)))


def claim(device: str, uuid: str, *, admin: bool = False, profile: str = "") -> GpuClaimRecord:
    held = GpuDeviceRecord(
        request="gpu",
        pool=PoolName("node-a"),
        device=DeviceName(device),
        pci=PciAddress(""),
        uuid=GpuUUID(uuid),
        is_admin=admin,
        profile=profile,
        cdi_id=f"k8s.gpu.nvidia.com/device={device}-0123456789",
    )
    return GpuClaimRecord(
        namespace="ml", name="a", uid=ClaimUID("uid-a"), generation="580", devices=(held,)
    )


def renamed(record: GpuClaimRecord, inventory: Inventory = NODE) -> list[tuple[str, str]]:
    found = GpuClaimIndex([record]).renamed_devices(inventory)
    assert all(each.holder == record.ref for each in found)
    return [(each.claimed_as, each.device.name) for each in found]


def test_a_gpu_that_is_held_under_a_former_name_is_found_by_its_uuid() -> None:
    assert renamed(claim("gpu-2", "GPU-1")) == [("gpu-2", "gpu-1")]
    assert renamed(claim("gpu-1", "GPU-1")) == []


def test_a_gpu_that_is_gone_or_only_monitored_is_not_withheld() -> None:
    assert renamed(claim("gpu-1", "GPU-2")) == []
    assert renamed(claim("gpu-2", "GPU-1", admin=True)) == []


def test_a_mig_device_is_called_after_its_gpu() -> None:
    cut = Inventory((in_mig_mode(0, (19, 4)),))
    (mig,) = cut.devices
    former = mig.name.replace("gpu-0", "gpu-3")
    assert renamed(claim(former, mig.uuid, profile="1g.10gb"), cut) == [(former, mig.name)]


def test_a_mig_device_of_another_profile_is_another_one_although_it_has_the_uuid() -> None:
    cut = Inventory((in_mig_mode(0, (19, 4)),))
    (mig,) = cut.devices
    assert renamed(claim("gpu-0-mig-2g20gb-14-4", mig.uuid, profile="2g.20gb"), cut) == []


def test_who_listens_is_told_of_each_record_that_goes() -> None:
    index, gone = GpuClaimIndex([claim("gpu-0", "GPU-0")]), list[ClaimUID]()
    index.on_remove(gone.append)
    index.remove(ClaimUID("uid-b"))
    index.remove(ClaimUID("uid-a"))
    assert gone == ["uid-a"]
