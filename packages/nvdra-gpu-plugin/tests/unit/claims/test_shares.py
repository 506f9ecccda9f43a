# SPDX-License-Identifier: Apache-2.0
"""Claims with shares of devices: what excludes what, and what those that share a GPU agree on."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.ids import DeviceName, NodeName
from nvdra_api.quantity import Quantity
from nvdra_api.resource.claims import DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import GpuConfig, MigDeviceConfig
from nvdra_gpu_plugin.claims import plan, shares
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.share_policy import SharePolicy
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_testing.hardware.gpus import h100, in_mig_mode
from nvdra_testing.node import divisible_node

NODE = NodeName("node-a")
INVENTORY = Inventory((h100(0), in_mig_mode(1, (19, 4), (19, 5))))
MIG, OTHER_MIG = (each.name for each in INVENTORY.gpus[1].mig_devices)
GENERATION = SpecGeneration("g", {name: f"vendor/device={name}" for name in INVENTORY.by_name})
SHARING = SharePolicy()
SMALL = {"memory": Quantity.parse("4Gi"), "shares": Quantity.parse("1")}


def share_id(number: int) -> str:
    return f"1a000000-0000-4000-8000-{number:012}"


def claim(number: int, namespace: str = "ml") -> ResourceClaim:
    uid = f"{number:08}-0000-4000-8000-000000000001"
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": namespace, "name": f"claim-{number}", "uid": uid},
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "gpu", "exactly": {"capacity": {"requests": {"memory": "4Gi"}}}}
                    ]
                }
            },
            "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": uid}]},
        }
    )


def time_slicing(interval: str) -> GpuConfig:
    return GpuConfig.model_validate(
        {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}}
    )


def result(
    device: str,
    share: str | None,
    config: GpuConfig | MigDeviceConfig,
    consumed: Mapping[str, Quantity] | None = None,
    *,
    admin: bool = False,
    of_claim: bool = False,
) -> ConfiguredResult:
    allocated = DeviceRequestAllocationResult(
        request="gpu",
        driver="gpu.nvidia.com",
        pool=NODE,
        device=device,
        share_id=share,
        admin_access=admin or None,
        consumed_capacity=None if consumed is None else dict(consumed),
    )
    return ConfiguredResult(allocated, config, None, of_claim)


def planned(
    number: int,
    *results: ConfiguredResult,
    inventory: Inventory = INVENTORY,
    policy: SharePolicy | None = SHARING,
    namespace: str = "ml",
) -> GpuClaimRecord:
    wanted = claim(number, namespace)
    return plan.make(wanted, results, inventory, GENERATION, NODE, policy)


def sharing(
    number: int,
    device: str = "gpu-0",
    config: GpuConfig | None = None,
    share: str | None = None,
    namespace: str = "ml",
) -> GpuClaimRecord:
    """The record of a claim with a share of a device."""
    share = share or share_id(number)
    wanted = result(device, share, config or GpuConfig(), SMALL)
    return planned(number, wanted, namespace=namespace)


def whole(number: int, device: str = "gpu-0", *, admin: bool = False) -> GpuClaimRecord:
    return planned(number, result(device, None, GpuConfig(), admin=admin))


def refusal(record: GpuClaimRecord, *held: GpuClaimRecord) -> DriverError | None:
    try:
        plan.check_free(record, GpuClaimIndex(held), {})
    except DriverError as error:
        return error
    return None


def test_many_claims_have_a_share_of_one_gpu() -> None:
    held = [sharing(number) for number in range(1, 20)]
    assert refusal(sharing(20), *held) is None
    assert refusal(sharing(7), *held) is None, "its own share excludes nobody"
    (device,) = sharing(1).devices
    assert device.display_name == "gpu-0 (share)"
    assert device.cdi_id == "vendor/device=gpu-0"
    (answered,) = sharing(1).prepare_result().devices
    assert answered.share_id == share_id(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sharing(1), whole(2)),
        (sharing(1, MIG), whole(2, MIG)),
        (sharing(1, share=share_id(9)), sharing(2, share=share_id(9))),
    ],
)
def test_a_share_excludes_the_whole_and_its_own_share_id(
    one: GpuClaimRecord, other: GpuClaimRecord
) -> None:
    for record, held in ((one, other), (other, one)):
        error = refusal(record, held)
        assert error is not None
        assert error.reason is Reason.DEVICE_IN_USE
        assert f"held by claim ml/{held.name}" in error.message


def test_a_share_of_a_gpu_excludes_its_mig_devices_and_the_other_way_round() -> None:
    """The record of a share that was prepared before MIG mode was switched on."""
    cut = INVENTORY.gpus[1]
    (device,) = sharing(1).devices
    of_gpu_1 = device.model_copy(update={"uuid": cut.uuid, "pci": cut.pci, "device": cut.name})
    share = sharing(1).model_copy(update={"devices": (of_gpu_1,)})
    for mig in (sharing(2, MIG), whole(2, MIG)):
        assert refusal(share, mig) is not None
        assert refusal(mig, share) is not None
    assert refusal(sharing(3, OTHER_MIG), sharing(2, MIG)) is None
    assert refusal(whole(3, OTHER_MIG), sharing(2, MIG)) is None


def test_monitoring_and_shares_do_not_meet() -> None:
    assert refusal(whole(2, admin=True), sharing(1)) is None
    assert refusal(sharing(1), whole(2, admin=True)) is None
    monitor = planned(3, result("gpu-0", share_id(1), GpuConfig(), admin=True))
    assert refusal(monitor, sharing(1)) is None
    assert monitor.devices[0].display_name == "gpu-0 (admin)"


def test_a_share_that_was_recovered_without_its_gpu_excludes_by_name() -> None:
    (device,) = sharing(1).devices
    lost = device.model_copy(update={"uuid": "", "pci": ""})
    recovered = sharing(1).model_copy(update={"devices": (lost,)})
    assert refusal(whole(2), recovered) is not None
    assert refusal(sharing(2), recovered) is None


def test_the_index_forgets_a_share_with_its_claim() -> None:
    index = GpuClaimIndex([sharing(1, config=time_slicing("Long"))])
    gpu = INVENTORY.gpus[0].uuid
    assert [each.name for each in index.changing(gpu)] == ["claim-1"]
    index.remove(sharing(1).uid)
    assert list(index.changing(gpu)) == []
    plan.check_free(whole(2), index, {})


def test_claims_that_share_a_gpu_want_the_same_of_it() -> None:
    long, short = time_slicing("Long"), time_slicing("Short")
    assert refusal(sharing(2, config=long), sharing(1, config=long)) is None
    error = refusal(sharing(2, config=short), sharing(1, config=long))
    assert error is not None
    assert error.reason is Reason.DEVICE_IN_USE
    assert "share with time slice Long" in error.message
    assert "this claim wants a share with time slice Short" in error.message
    assert "claim ml/claim-1" in error.message
    plain = refusal(sharing(2), sharing(1, config=long))
    assert plain is not None
    assert "wants a share with no time slice" in plain.message
    theirs = refusal(sharing(2, config=short), sharing(1, config=long, namespace="secret"))
    assert theirs is not None
    assert "secret" not in theirs.message + theirs.remedy
    assert "time slice Long" in theirs.message


def test_claims_of_one_pod_that_share_a_gpu_in_two_ways_are_told_at_once() -> None:
    """To wait for the other one would be to wait for the pod itself."""
    holder, record = sharing(1, config=time_slicing("Long")), sharing(2)
    error = refusal(record.model_copy(update={"pods": holder.pods}), holder)
    assert isinstance(error, PermanentError)
    assert error.reason is Reason.INVALID_CONFIG
    assert f"{holder.ref} of the same pod has one with time slice Long" in error.message


def test_all_of_the_memory_is_all_that_is_published_which_is_whole_mebibytes() -> None:
    odd = replace(h100(0), memory_bytes=15109 * 1024**2 + 4096)
    consumed = {"memory": Quantity.parse("15109Mi")}
    wanted = result("gpu-0", share_id(1), GpuConfig(), consumed)
    found = planned(1, wanted, inventory=Inventory((odd,)), policy=None)
    assert not found.devices[0].is_shared


def test_several_shares_of_a_gpu_in_one_claim_set_its_time_slice_once() -> None:
    config = time_slicing("Long")
    found = planned(
        1,
        result("gpu-0", share_id(1), config, SMALL),
        result("gpu-0", share_id(2), config, SMALL),
    )
    assert [device.share_id for device in found.devices] == [share_id(1), share_id(2)]
    assert len(found.steps) == 1
    with pytest.raises(PermanentError, match="time slice Short and with time slice Long") as caught:
        planned(
            1,
            result("gpu-0", share_id(1), config, SMALL),
            result("gpu-0", share_id(2), time_slicing("Short"), SMALL),
        )
    assert caught.value.reason is Reason.INVALID_CONFIG


@pytest.mark.parametrize(
    ("device", "config"),
    [
        ("gpu-0", GpuConfig.model_validate({"sharing": {"strategy": "MPS"}})),
        (MIG, MigDeviceConfig.model_validate({"sharing": {"strategy": "MPS"}})),
    ],
)
def test_mps_is_not_for_a_share(device: str, config: GpuConfig | MigDeviceConfig) -> None:
    with pytest.raises(PermanentError, match="MPS is not available for a share") as caught:
        planned(1, result(device, share_id(1), config, SMALL))
    assert caught.value.reason is Reason.INVALID_CONFIG
    planned(1, result(device, None, config))


def test_where_classes_alone_configure_shares_a_claim_with_a_config_is_refused() -> None:
    by_class = SharePolicy(is_configured_by_class=True)
    config = time_slicing("Long")
    own = result("gpu-0", share_id(1), config, SMALL, of_claim=True)
    planned(1, own)
    with pytest.raises(PermanentError, match="only the DeviceClass says") as caught:
        planned(1, own, policy=by_class)
    assert caught.value.reason is Reason.INVALID_CONFIG
    planned(1, result("gpu-0", share_id(1), config, SMALL), policy=by_class)
    planned(1, result("gpu-0", None, config, of_claim=True), policy=by_class)
    planned(1, result("gpu-0", share_id(1), config, admin=True, of_claim=True), policy=by_class)


def test_where_devices_are_not_shared_a_share_is_refused_and_the_reason_said() -> None:
    """It was allocated from slices of the time when they were."""
    wanted = result("gpu-0", share_id(1), GpuConfig(), SMALL)
    with pytest.raises(PermanentError, match="allocated part of gpu-0") as caught:
        planned(1, wanted, policy=None)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert "--consumable-shares" in caught.value.remedy


def test_a_mig_device_that_is_made_for_a_claim_is_not_shared() -> None:
    inventory = Inventory(divisible_node.GPUS)
    name = DeviceName(next(iter(inventory.partitions)))
    with pytest.raises(PermanentError, match=f"part of {name}"):
        planned(1, result(name, share_id(1), GpuConfig(), SMALL), inventory=inventory)


def test_the_least_capacity_is_told_of_whole_devices_only() -> None:
    assert shares.minimum_capacity(claim(1), [result("gpu-0", None, GpuConfig())]) == "memory 4Gi"
    share = result("gpu-0", share_id(1), GpuConfig(), SMALL)
    assert shares.minimum_capacity(claim(1), [share]) == ""
