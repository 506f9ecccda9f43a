# SPDX-License-Identifier: Apache-2.0
"""What is published of a claim's devices becomes what their containers read."""

from dataclasses import replace
from typing import Any

from nvdra_api.ids import ClaimUID, MigUUID, NodeName, PoolName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_api.v1beta1 import GpuConfig
from nvdra_gpu_plugin.claims import metadata_plan, plan
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.devices.steps import MadeInstance
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode, mig_device, vfio_h100

NODE = NodeName("node-a")
UID = "11111111-0000-4000-8000-000000000001"
INVENTORY = Inventory((h100(0), in_mig_mode(1, (19, 0)), divisible(2, (9, 4)), h100(3)))
STATIC, MADE = "gpu-1-mig-1g10gb-19-0", "gpu-2-mig-3g40gb-9-4"


def result(request: str, device: str, driver: str = "gpu.nvidia.com") -> dict[str, str]:
    return {"request": request, "driver": driver, "pool": NODE, "device": device}


def claim(*results: dict[str, str], **annotations: str) -> ResourceClaim:
    return ResourceClaim.model_validate(
        {
            "metadata": {
                "namespace": "ml",
                "name": "train-gpu-x7k2p",
                "uid": UID,
                "annotations": annotations,
            },
            "status": {"allocation": {"devices": {"results": list(results)}}},
        }
    )


def planned(found: ResourceClaim, inventory: Inventory = INVENTORY) -> GpuClaimRecord:
    assert found.status.allocation is not None
    configured = [
        ConfiguredResult(each, GpuConfig(), None)
        for each in found.status.allocation.devices.results
        if each.driver == "gpu.nvidia.com"
    ]
    names = {name: f"v/c={name}" for name in inventory.by_name}
    return plan.make(found, configured, inventory, SpecGeneration("g", names), NODE)


def described(*results: dict[str, str], **annotations: str) -> GpuClaimRecord:
    found = claim(*results, **annotations)
    return metadata_plan.with_metadata(planned(found), found, INVENTORY, numa_as_list=False)


def attributes(record: GpuClaimRecord) -> list[dict[str, Any]]:
    return [device.metadata.attributes for device in record.devices if device.metadata]


def test_every_kind_of_device_is_described_as_it_is_published() -> None:
    record = described(*(result("gpu", name) for name in ("gpu-0", STATIC, MADE)))
    whole, static, made = attributes(record)
    assert whole["uuid"] == {"string": h100(0).uuid}
    assert whole["driverVersion"] == {"version": "580.95.5"}
    assert whole["resource.kubernetes.io/numaNode"] == {"int": 0}
    assert static["uuid"] == {"string": mig_device(h100(1), 19, 0).uuid}
    assert static["profile"] == static["migProfile"] == {"string": "1g.10gb"}
    assert made["parentUUID"] == {"string": "GPU-2"}
    assert made["profile"] == {"string": "3g.40gb"}
    assert "uuid" not in made, "it comes with the device"


def test_the_form_of_numa_nodes_is_that_of_the_slices() -> None:
    found = claim(result("gpu", "gpu-0"))
    record = metadata_plan.with_metadata(planned(found), found, INVENTORY, numa_as_list=True)
    assert attributes(record)[0]["resource.kubernetes.io/numaNode"] == {"ints": [0]}


def test_the_first_device_of_each_request_mounts_the_requests_file() -> None:
    record = described(result("a/large", "gpu-0"), result("b", STATIC), result("a/large", "gpu-3"))
    assert [device.cdi_ids[1:] for device in record.devices] == [
        (f"gpu.nvidia.com/metadata={UID}_a",),
        (f"gpu.nvidia.com/metadata={UID}_b",),
        (),
    ]
    assert [device.metadata.request for device in record.devices if device.metadata] == [
        "a/large",
        "b",
        "a/large",
    ]


def test_results_of_other_drivers_with_the_same_names_are_left_alone() -> None:
    record = described(result("a/nic", "gpu-0", "nic.example.com"), result("a/gpu", "gpu-0"))
    (device,) = record.devices
    assert device.metadata is not None
    assert device.metadata.request == "a/gpu"


def test_a_claim_of_a_template_has_the_pods_name_for_it() -> None:
    annotation = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    record = described(result("gpu", "gpu-0"), **annotation)
    assert record.metadata is not None
    assert record.metadata.pod_claim_name == "gpu"
    direct = described(result("gpu", "gpu-0"))
    assert direct.metadata is not None
    assert direct.metadata.pod_claim_name == ""


def test_a_record_is_read_from_the_state_file_as_it_was_written() -> None:
    record = described(result("gpu", "gpu-0"), result("gpu", MADE))
    assert GpuClaimRecord.model_validate_json(record.model_dump_json()) == record


def replanned(record: GpuClaimRecord, *gpus: Gpu) -> GpuClaimRecord:
    inventory = Inventory(gpus)
    return metadata_plan.with_present_attributes(record, inventory, numa_as_list=False)


def generation(record: GpuClaimRecord) -> int:
    assert record.metadata is not None
    return record.metadata.generation


def test_after_a_reboot_the_attributes_are_those_of_today_in_the_next_generation() -> None:
    record = described(result("gpu", "gpu-0"))
    assert generation(record) == 1
    assert replanned(record, *INVENTORY.gpus) == record
    updated = replanned(record, replace(h100(0), driver_version="590.44.01", minor=5))
    assert generation(updated) == 2
    assert attributes(updated)[0]["driverVersion"] == {"version": "590.44.1"}
    assert replanned(updated) == updated, "a GPU that is missing keeps its attributes"


def test_a_device_that_was_made_again_is_another_generation() -> None:
    record = described(result("gpu", MADE))
    (step,) = record.made

    def made(uuid: str) -> GpuClaimRecord:
        instance = MadeInstance(gpu_instance=1, compute_instance=0, uuid=MigUUID(uuid))
        return record.with_steps((step.model_copy(update={"made": instance}),))

    first = made("MIG-1")
    assert metadata_plan.with_generation(made("MIG-1"), first) == first
    again = metadata_plan.with_generation(made("MIG-2"), first)
    assert generation(again) == 2


def test_a_claim_without_metadata_gets_none_by_a_reboot() -> None:
    record = planned(claim(result("gpu", "gpu-0")))
    assert replanned(record, replace(h100(0), driver_version="590.44.01")) == record
    assert metadata_plan.with_generation(record, described(result("gpu", "gpu-3"))) == record


def test_a_device_that_is_not_there_is_named_without_attributes() -> None:
    found = claim(result("gpu", "gpu-0"))
    record = metadata_plan.with_metadata(planned(found), found, Inventory(), numa_as_list=False)
    assert attributes(record) == [{}]
    assert attributes(replanned(record, h100(0)))[0]["uuid"] == {"string": "GPU-0"}


def vfio_record(name: str, request: str) -> GpuClaimRecord:
    vfio = vfio_h100(0)
    device = GpuDeviceRecord(
        request=request,
        pool=PoolName(NODE),
        device=vfio.name,
        pci=vfio.pci,
        uuid=vfio.uuid,
        kind="vfio",
        cdi_id="v/c=d",
    )
    return GpuClaimRecord(
        namespace="ml", name=name, uid=ClaimUID(UID), generation="580.95.05", devices=(device,)
    )


def test_a_vfio_device_is_described_as_it_is_published_whichever_driver_has_it() -> None:
    found = claim(result("vm", "gpu-vfio-0"))
    vfio = vfio_h100(0, parent_uuid=h100(0).uuid)
    record = vfio_record("train-gpu-x7k2p", "vm")
    for inventory in (Inventory((h100(0),), (vfio,)), Inventory((), (vfio,))):
        (device,) = attributes(
            metadata_plan.with_metadata(record, found, inventory, numa_as_list=False)
        )
        assert device == {
            "type": {"string": "vfio"},
            "uuid": {"string": vfio.uuid},
            "deviceID": {"string": "0x2330"},
            "vendorID": {"string": "0x10de"},
            "productName": {"string": "GH100 [H100 SXM5 80GB]"},
            "iommuFDEnabled": {"bool": False},
            "iommuGroup": {"int": 40},
            "isolated": {"bool": True},
            "parentUUID": {"string": h100(0).uuid},
            "resource.kubernetes.io/pciBusID": {"string": "0000:00:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        }


def test_a_vfio_device_that_is_gone_keeps_its_attributes() -> None:
    found = claim(result("vm", "gpu-vfio-0"))
    inventory = Inventory((), (vfio_h100(0),))
    record = metadata_plan.with_metadata(
        vfio_record("train-gpu-x7k2p", "vm"), found, inventory, numa_as_list=False
    )
    gone = metadata_plan.with_present_attributes(record, Inventory(), numa_as_list=False)
    assert gone == record
