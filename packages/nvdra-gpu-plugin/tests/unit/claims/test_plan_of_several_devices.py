# SPDX-License-Identifier: Apache-2.0
"""Plans of claims with several devices: admin access beside others, and shares of devices."""

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ClaimRef, DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import GpuConfig
from nvdra_gpu_plugin.claims import plan
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_testing.hardware.gpus import h100

NODE = NodeName("node-a")
INVENTORY = Inventory((h100(0), h100(1)))
GENERATION = SpecGeneration("g1", {gpu.name: f"v/d={gpu.name}-g1" for gpu in INVENTORY.gpus})
CLAIM = ResourceClaim.model_validate(
    {"metadata": {"namespace": "ml", "name": "a", "uid": "uid-a"}, "status": {}}
)
BROKEN = ClaimRef("ml", "broken", ClaimUID("uid-broken"))


def made(**admin_by_device: bool) -> GpuClaimRecord:
    configured = [
        ConfiguredResult(
            DeviceRequestAllocationResult(
                request=f"r-{device}",
                driver="gpu.nvidia.com",
                pool=NODE,
                device=device.replace("_", "-"),
                admin_access=is_admin or None,
                share_id=f"share-{device}",
            ),
            GpuConfig(),
            None,
        )
        for device, is_admin in admin_by_device.items()
    ]
    return plan.make(CLAIM, configured, INVENTORY, GENERATION, NODE)


def test_admin_access_to_one_gpu_gives_no_other_one_away_while_records_are_in_doubt() -> None:
    mixed = made(gpu_0=True, gpu_1=False)
    for doubt in ([BROKEN], ""), ([], "records were lost"):
        with pytest.raises(PermanentError, match="whether gpu-0, gpu-1 is free") as caught:
            plan.check_records_complete(mixed, *doubt)
        assert caught.value.reason is Reason.STATE_CORRUPT
        plan.check_records_complete(made(gpu_0=True, gpu_1=True), *doubt)
    plan.check_records_complete(mixed, [])


def test_the_share_of_each_device_is_recorded_and_answered() -> None:
    record = made(gpu_1=False, gpu_0=False)
    assert [device.share_id for device in record.devices] == ["share-gpu_1", "share-gpu_0"]
    answered = record.prepare_result().devices
    assert [device.share_id for device in answered] == ["share-gpu_1", "share-gpu_0"]


def test_each_device_says_itself_whether_it_has_admin_access() -> None:
    record = made(gpu_0=True, gpu_1=False)
    assert [device.is_admin for device in record.devices] == [True, False]
    assert [device.display_name for device in record.devices] == ["gpu-0 (admin)", "gpu-1"]
