# SPDX-License-Identifier: Apache-2.0
"""Claims of MIG devices: what they exclude, and what their records say of today's hardware."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, MigUUID, NodeName, PciAddress, PoolName
from nvdra_api.resource.claims import DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import MigDeviceConfig
from nvdra_gpu_plugin.claims import plan, record_checks
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_testing.hardware.gpus import h100, in_mig_mode, mig_device

NODE = NodeName("node-a")
CUT = in_mig_mode(0, (9, 0), (19, 4), (19, 5))
LARGE, SMALL, OTHER_SMALL = (
    DeviceName(f"gpu-0-mig-{text}") for text in ("3g40gb-9-0", "1g10gb-19-4", "1g10gb-19-5")
)
CUT_NODE = Inventory((CUT, h100(1)))
WHOLE_NODE = Inventory((h100(0), h100(1)))


def generation(inventory: Inventory) -> SpecGeneration:
    return SpecGeneration("g", {name: f"v/c={name}-0123456789" for name in inventory.by_name})


def record(
    *devices: str, inventory: Inventory = CUT_NODE, admin: bool = False, uid: str = "uid"
) -> GpuClaimRecord:
    claim = ResourceClaim.model_validate(
        {"metadata": {"namespace": "ml", "name": uid, "uid": uid}, "spec": {}, "status": {}}
    )
    configured = [
        ConfiguredResult(
            DeviceRequestAllocationResult(
                request="mig",
                driver="gpu.nvidia.com",
                pool=NODE,
                device=device,
                admin_access=admin or None,
            ),
            MigDeviceConfig(),
            None,
        )
        for device in devices
    ]
    return plan.make(claim, configured, inventory, generation(inventory), NODE)


def without_hardware(claim: GpuClaimRecord) -> GpuClaimRecord:
    """As it is recovered from the kubelet's checkpoint while the GPU is missing."""
    unknown = {"pci": PciAddress(""), "uuid": GpuUUID(""), "parent_uuid": "", "profile": ""}
    devices = tuple(device.model_copy(update=unknown) for device in claim.devices)
    return claim.model_copy(update={"devices": devices})


def is_refused(wanted: GpuClaimRecord, held: Iterable[GpuClaimRecord]) -> bool:
    index = GpuClaimIndex(held)
    others = (index.conflicting_claim(device, wanted.uid) for device in wanted.devices)
    return any(other is not None for other in others)


def test_a_record_says_which_mig_device_it_is() -> None:
    (device,) = record(LARGE).devices
    assert (device.kind, device.profile) == ("mig", "3g.40gb")
    assert (device.uuid, device.parent_uuid, device.pci) == ("MIG-0-1-0", "GPU-0", "0000:00:00.0")
    assert record(LARGE).kind == "mig"
    (whole,) = record("gpu-1").devices
    assert (whole.kind, whole.profile, whole.parent_uuid) == ("gpu", "", "")


def test_two_mig_devices_of_one_gpu_are_held_by_two_claims() -> None:
    assert not is_refused(record(SMALL), [record(LARGE, OTHER_SMALL, uid="other")])
    assert is_refused(record(SMALL), [record(LARGE, SMALL, uid="other")])
    assert not is_refused(record(SMALL), [record(SMALL)]), "a claim is not in its own way"


def test_a_claim_that_waits_for_a_mig_device_is_not_behind_those_that_wait_for_others() -> None:
    waits = []
    for name in (SMALL, LARGE):
        with pytest.raises(DeviceInUseError) as caught:
            plan.check_free(record(name), GpuClaimIndex([record(name, uid="other")]), {})
        waits.append(set(caught.value.device_keys))
    assert not waits[0] & waits[1]


def test_a_whole_gpu_and_a_mig_device_of_it_exclude_each_other() -> None:
    whole = record("gpu-0", inventory=WHOLE_NODE, uid="other")
    assert is_refused(record(SMALL), [whole])
    assert is_refused(whole, [record(SMALL)])
    assert not is_refused(record("gpu-1"), [record(SMALL, uid="other")])


@pytest.mark.parametrize("is_admin_held", [True, False])
def test_admin_access_to_a_mig_device_excludes_nobody(is_admin_held: bool) -> None:
    held = record(SMALL, admin=is_admin_held, uid="other")
    assert not is_refused(record(SMALL, admin=not is_admin_held), [held])


def test_a_mig_device_that_is_known_by_its_name_alone_is_held_with_its_gpu() -> None:
    held = without_hardware(record(SMALL, uid="other"))
    assert is_refused(record(SMALL), [held])
    assert is_refused(record("gpu-0", inventory=WHOLE_NODE), [held])
    assert not is_refused(record(LARGE), [held])
    whole = without_hardware(record("gpu-0", inventory=WHOLE_NODE, uid="other"))
    assert is_refused(record(SMALL), [whole])


def test_what_is_put_back_leaves_nothing_behind() -> None:
    index = GpuClaimIndex([record(LARGE, SMALL, uid="other")])
    index.remove(ClaimUID("other"))
    assert (
        index.conflicting_claim(record("gpu-0", inventory=WHOLE_NODE).devices[0], ClaimUID(""))
        is None
    )


def refusal(claim: GpuClaimRecord, inventory: Inventory) -> DriverError | None:
    try:
        record_checks.check_same_gpus(claim, inventory, generation(inventory))
    except DriverError as error:
        return error
    return None


def test_a_mig_device_that_is_gone_is_unhealthy_with_a_remedy() -> None:
    refused = refusal(record(SMALL), Inventory((in_mig_mode(0, (9, 0)), h100(1))))
    assert refused is not None
    assert refused.reason is Reason.DEVICE_UNHEALTHY
    assert "nvidia-smi mig -cgi" in str(refused)
    assert refusal(record(SMALL), CUT_NODE) is None


def test_a_mig_device_of_another_profile_with_the_same_uuid_is_another_one() -> None:
    """NVML derives the UUID from the place: a 4g instance may follow a 3g one."""
    (large,) = record(LARGE).devices
    other = mig_device(CUT, 14, 0, uuid=large.uuid)
    again = Inventory((replace(CUT, mig_devices=(other,)), h100(1)))
    refused = refusal(record(LARGE), again)
    assert refused is not None
    assert refused.reason is Reason.DEVICE_UNHEALTHY
    assert f"{large.uuid} is gpu-0-mig-2g20gb-14-0 now" in refused.message


def test_a_mig_device_is_followed_to_its_gpus_new_address() -> None:
    moved = in_mig_mode(3, (19, 4), uuid=CUT.uuid, pci=PciAddress("0000:7f:00.0"))
    same = mig_device(moved, 19, 4, uuid=MigUUID("MIG-0-11-0"))
    inventory = Inventory((replace(moved, mig_devices=(same,)),))
    again = record_checks.planned_again(record(SMALL), inventory, None)
    assert [device.pci for device in again.devices] == ["0000:7f:00.0"]
    (named,) = record_checks.with_present_names(again, inventory)
    assert named.device == "gpu-3-mig-1g10gb-19-4"


def test_a_record_of_release_0_1_0_reads_as_one_of_a_whole_gpu() -> None:
    new = json.loads(record("gpu-1").model_dump_json())
    for device in new["devices"]:
        del device["parent_uuid"], device["profile"]
    assert GpuClaimRecord.model_validate_json(json.dumps(new)) == record("gpu-1")


def test_release_0_1_0_reads_the_record_of_a_mig_device() -> None:
    """It knows the fields that it has, and ignores others."""
    (device,) = json.loads(record(SMALL).model_dump_json())["devices"]
    known = {"request", "pool", "device", "kind", "share_id", "pci", "uuid", "is_admin", "cdi_id"}
    assert known <= device.keys()
    assert all(isinstance(device[name], str) for name in known - {"share_id", "is_admin"})


def test_a_recovered_record_finds_its_mig_device_by_name() -> None:
    again = record_checks.planned_again(without_hardware(record(SMALL)), CUT_NODE, None)
    assert again.devices == record(SMALL).devices


def test_the_record_of_a_device_needs_no_field_of_mig() -> None:
    device = GpuDeviceRecord(
        request="gpu",
        pool=PoolName(NODE),
        device=DeviceName("gpu-0"),
        pci=PciAddress(""),
        uuid=GpuUUID(""),
        cdi_id="",
    )
    assert (device.kind, device.parent_uuid, device.profile) == ("gpu", "", "")
