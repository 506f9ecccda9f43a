# SPDX-License-Identifier: Apache-2.0
"""What claims of vfio devices are to get, and which of them are refused."""

from collections.abc import Mapping
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import NodeName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_cdi.model import ContainerEdits
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.claims import plan
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.share_policy import SharePolicy
from nvdra_testing.hardware.gpus import h100, in_mig_mode, vfio_h100

NODE = NodeName("node-a")
VFIO = tuple(vfio_h100(number, parent_uuid=h100(number).uuid) for number in range(2))
INVENTORY = Inventory((h100(0), h100(1)), VFIO)
GENERATION = SpecGeneration("g1", {gpu.name: f"v/d={gpu.name}-g1" for gpu in INVENTORY.gpus})
GATES = FeatureGates({"PassthroughSupport": True, "TimeSlicingSettings": True})


def claim(*results: Mapping[str, Any], configs: Mapping[str, Any] | None = None) -> ResourceClaim:
    """A claim with these results of its allocation, and a config for each of these requests."""
    config = [
        {
            "source": "FromClaim",
            "requests": [request],
            "opaque": {
                "driver": "gpu.nvidia.com",
                "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", **parameters},
            },
        }
        for request, parameters in (configs or {}).items()
    ]
    common = {"driver": "gpu.nvidia.com", "pool": NODE}
    devices = {"results": [{**common, **result} for result in results], "config": config}
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": "vm", "uid": "uid-vm"},
            "status": {"allocation": {"devices": devices}},
        }
    )


def made(
    wanted: ResourceClaim, policy: SharePolicy | None = None, inventory: Inventory = INVENTORY
) -> GpuClaimRecord:
    spec = NodeSpec(GENERATION, Options(), ContainerEdits(), ContainerEdits(), {}, {}, {})
    planner = plan.Planner(NODE, GATES, lambda record, *_: record, policy)
    return planner.plan(wanted, Snapshot(inventory, spec)).record


def result(device: str, request: str = "vm", **how: Any) -> Mapping[str, Any]:
    return {"request": request, "device": device, **how}


def vfio_config(policy: str, **iommu: Any) -> Mapping[str, Any]:
    return {"kind": "VfioDeviceConfig", "iommu": {"backendPolicy": policy, **iommu}}


TIME_SLICING = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}


def test_each_gpu_is_bound_and_all_of_a_claim_by_one_back_end() -> None:
    wanted = claim(
        result("gpu-vfio-0", "a"),
        result("gpu-vfio-1", "b"),
        configs={
            "a": vfio_config("PreferIommuFD"),
            "b": vfio_config("PreferIommuFD", enableAPIDevice=True),
        },
    )
    record = made(wanted)
    assert record.bound == tuple(
        BindVfio(
            device=vfio.name,
            pci=vfio.pci,
            gpu=h100(number).uuid,
            module="vfio_pci",
            backend_policy="PreferIommuFD",
            enable_api_device=True,
        )
        for number, vfio in enumerate(VFIO)
    )
    assert record.generation == "", "no container of it gets libraries of the driver"


def test_a_claim_of_gpu_and_vfio_device_needs_the_libraries_for_the_gpu() -> None:
    record = made(claim(result("gpu-0", "cuda"), result("gpu-vfio-1")))
    assert record.generation == "g1"
    assert [step.device for step in record.steps] == ["gpu-vfio-1"]
    assert [device.cdi_id for device in record.devices] == [
        "v/d=gpu-0-g1",
        "k8s.gpu.nvidia.com/claim-device=uid-vm-gpu-vfio-1",
    ]


@pytest.mark.parametrize(
    ("wanted", "policy", "says", "remedy"),
    [
        (
            claim(result("gpu-vfio-0", adminAccess=True)),
            None,
            "gpu-vfio-0 cannot be monitored by admin access",
            "remove adminAccess",
        ),
        (
            claim(
                result("gpu-vfio-0", "a"),
                result("gpu-vfio-1", "b"),
                configs={"a": vfio_config("LegacyOnly"), "b": vfio_config("PreferIommuFD")},
            ),
            None,
            "gpu-vfio-0 has the backendPolicy LegacyOnly and gpu-vfio-1 of the same claim Prefer",
            "the same backendPolicy, or make two claims",
        ),
        *(
            (
                claim(
                    result(
                        "gpu-vfio-0", shareID="s-1", consumedCapacity={"addressableMemory": "1Gi"}
                    )
                ),
                policy,
                r"it was allocated part of gpu-vfio-0 \(addressableMemory 1Gi\)",
                "ask for the vfio device without capacity",
            )
            for policy in (None, SharePolicy(), SharePolicy(is_by_memory=True))
        ),
        (
            claim(result("gpu-vfio-0"), configs={"vm": TIME_SLICING}),
            None,
            "GpuConfig",
            "",
        ),
    ],
    ids=["admin", "back-ends", "share", "share-of-many", "share-of-memory", "time-slicing"],
)
def test_what_a_virtual_machine_cannot_have_is_refused_with_what_to_do(
    wanted: ResourceClaim, policy: SharePolicy | None, says: str, remedy: str
) -> None:
    with pytest.raises(PermanentError, match=says) as caught:
        made(wanted, policy)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert remedy in caught.value.remedy
    assert caught.value.remedy


def test_a_gpu_that_is_divided_for_good_is_refused_and_the_other_one_is_not() -> None:
    inventory = Inventory((in_mig_mode(0), h100(1)), VFIO)
    with pytest.raises(PermanentError, match=f"gpu-vfio-0: GPU {VFIO[0].pci} cannot") as caught:
        made(claim(result("gpu-vfio-0")), inventory=inventory)
    assert caught.value.reason is Reason.VFIO_NOT_POSSIBLE
    assert "DynamicMIG" in caught.value.remedy
    assert made(claim(result("gpu-vfio-1")), inventory=inventory).bound
