# SPDX-License-Identifier: Apache-2.0
"""Allocation results → what a claim will hold, or why it cannot; no hardware, no clock."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, GpuUUID, NodeName, PciAddress, PodUID
from nvdra_api.quantity import Quantity
from nvdra_api.resource.claims import ClaimRef, DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import GpuConfig
from nvdra_gpu_plugin.claims import plan, shares
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.devices.steps import GpuSharing, ShareByTime
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_testing.hardware.gpus import h100

NODE = NodeName("node-a")
POD = "7e0e1c5a-0000-4000-8000-000000000001"
UID = "11111111-0000-4000-8000-000000000001"


INVENTORY = Inventory((h100(0), h100(1)))


def generation(name: str = "g1") -> SpecGeneration:
    devices = INVENTORY.by_name
    return SpecGeneration(name, {device: f"vendor/device={device}-{name}" for device in devices})


def claim(
    uid: str = UID, pod: str = POD, capacity: Mapping[str, str] | None = None
) -> ResourceClaim:
    alternative: dict[str, Any] = {
        "name": "large",
        "capacity": capacity and {"requests": dict(capacity)},
    }
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": f"claim-{uid[0]}", "uid": uid},
            "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": [alternative]}]}},
            "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": pod}]},
        }
    )


def results(
    *devices: str,
    admin: bool = False,
    pool: str = NODE,
    consumed: Mapping[str, str] | None = None,
) -> list[ConfiguredResult]:
    return [
        ConfiguredResult(
            DeviceRequestAllocationResult(
                request="gpu/large",
                driver="gpu.nvidia.com",
                pool=pool,
                device=device,
                admin_access=admin or None,
                consumed_capacity=consumed
                and {name: Quantity.parse(amount) for name, amount in consumed.items()},
            ),
            GpuConfig(),
            None,
        )
        for device in devices
    ]


def made(
    *devices: str,
    uid: str = UID,
    pod: str = POD,
    inventory: Inventory = INVENTORY,
    named: SpecGeneration | None = None,
    requested: Mapping[str, str] | None = None,
    **allocated: Any,
) -> GpuClaimRecord:
    configured = results(*devices, **allocated)
    return plan.make(claim(uid, pod, requested), configured, inventory, named or generation(), NODE)


def shared_by_time(*devices: str, interval: str, admin: bool = False) -> GpuClaimRecord:
    """The record of a claim whose GPUs are shared by time."""
    config = GpuConfig.model_validate(
        {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}}
    )
    configured = [replace(each, config=config) for each in results(*devices, admin=admin)]
    return plan.make(claim(), configured, INVENTORY, generation(), NODE)


def held(*records: GpuClaimRecord) -> GpuClaimIndex:
    return GpuClaimIndex(records)


def test_a_plan_names_devices_boards_and_pods_in_the_order_of_the_allocation() -> None:
    wanted = made("gpu-1", "gpu-0")
    assert [device.device for device in wanted.devices] == ["gpu-1", "gpu-0"]
    assert [device.request for device in wanted.devices] == ["gpu", "gpu"]
    assert [device.cdi_id for device in wanted.devices] == [
        "vendor/device=gpu-1-g1",
        "vendor/device=gpu-0-g1",
    ]
    assert {each.pci for each in wanted.devices} == {"0000:00:00.0", "0000:01:00.0"}
    assert wanted.pods == (PodUID(POD),)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"devices": ("gpu-9",)}, "gpu-9 is not on node node-a, which has gpu-0, gpu-1"),
        ({"devices": ("gpu-0",), "pool": "node-b"}, "pool node-b is not this node's pool node-a"),
        (
            {
                "devices": ("gpu-0",),
                "inventory": Inventory((h100(0, is_mig_enabled=True),)),
            },
            "gpu-0 is in MIG mode",
        ),
        ({"devices": ("gpu-0",), "inventory": Inventory()}, "which has no GPU"),
    ],
)
def test_a_device_that_cannot_be_given_is_unknown_and_says_what_is_there(
    arguments: dict[str, Any], says: str
) -> None:
    devices = arguments.pop("devices")
    with pytest.raises(PermanentError, match=says) as caught:
        made(*devices, **arguments)
    assert caught.value.reason is Reason.UNKNOWN_DEVICE


@pytest.mark.parametrize(
    "capacity", [{"memory": "2Gi"}, {"gpu.nvidia.com/memory": "2Gi"}, {"shares": "1"}]
)
def test_who_was_allocated_part_of_a_gpu_does_not_silently_get_all_of_it(
    capacity: dict[str, str],
) -> None:
    ((name, amount),) = capacity.items()
    with pytest.raises(PermanentError, match=f"{name} {amount}") as caught:
        made("gpu-0", consumed=capacity)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert "whole" in caught.value.message
    made("gpu-0", consumed=capacity, admin=True)  # monitoring takes nothing from anybody


@pytest.mark.parametrize("memory", ["85520809984", "100Gi"])
def test_who_was_allocated_all_of_a_gpus_memory_gets_the_gpu(memory: str) -> None:
    assert made("gpu-0", consumed={"memory": memory}) == made("gpu-0")


@pytest.mark.parametrize("memory", ["2Gi", "80Gi"])
def test_a_minimum_of_memory_is_for_the_scheduler_and_gets_the_gpu(memory: str) -> None:
    requested = {"memory": memory}
    assert made("gpu-0", requested=requested) == made("gpu-0")
    wanted = claim(capacity=requested)
    assert shares.minimum_capacity(wanted, results("gpu-0", "gpu-1")) == f"memory {memory}"
    assert shares.minimum_capacity(claim(), results("gpu-0")) == ""


def test_a_board_that_another_claim_holds_is_refused_with_its_holder() -> None:
    other = made("gpu-0", uid="22222222-0000-4000-8000-000000000002")
    with pytest.raises(
        RetryableError, match=r"gpu-0 is held by claim ml/claim-2 \(UID 2.* for pod p"
    ) as caught:
        plan.check_free(made("gpu-1", "gpu-0"), held(other), {})
    assert caught.value.reason is Reason.DEVICE_IN_USE
    assert caught.value.facts["holder"] == str(other.ref)


def test_a_board_is_held_although_the_bus_was_renumbered_since() -> None:
    other = made("gpu-0", uid="22222222-0000-4000-8000-000000000002")
    (device,) = other.devices
    moved = device.model_copy(update={"pci": PciAddress("0000:7f:00.0")})
    earlier = other.model_copy(update={"devices": (moved,)})
    refused = refusal(made("gpu-0"), GpuClaimIndex([earlier]))
    assert refused is not None
    assert refused.reason is Reason.DEVICE_IN_USE


def test_nothing_but_monitoring_is_given_away_while_a_record_cannot_be_read() -> None:
    unreadable = ClaimRef("ml", "broken", ClaimUID("33333333-0000-4000-8000-000000000003"))
    with pytest.raises(PermanentError, match="ml/broken") as caught:
        plan.check_records_complete(made("gpu-0"), [unreadable])
    assert caught.value.reason is Reason.STATE_CORRUPT
    plan.check_records_complete(made("gpu-0", admin=True), [unreadable])
    plan.check_records_complete(made("gpu-0", uid=unreadable.uid), [unreadable])
    plan.check_records_complete(made("gpu-0"), [])


def test_a_holder_of_another_namespace_is_named_to_operators_only() -> None:
    other = made("gpu-0", uid="22222222-0000-4000-8000-000000000002")
    holder = other.model_copy(update={"namespace": "team-b", "name": "secret"})
    with pytest.raises(RetryableError) as caught:
        plan.check_free(made("gpu-0"), GpuClaimIndex([holder]), {})
    assert "team-b" not in str(caught.value)
    assert "held by claim team-b/secret (UID 2" in caught.value.operator_text
    unreadable = ClaimRef("team-b", "secret", ClaimUID("33333333-0000-4000-8000-000000000003"))
    with pytest.raises(PermanentError) as corrupt:
        plan.check_records_complete(made("gpu-0"), [unreadable])
    assert "team-b" not in str(corrupt.value)
    assert "claim team-b/secret:3" in corrupt.value.operator_text


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    wanted = made("gpu-0")
    plan.check_free(wanted, held(wanted), {})
    assert refusal(wanted, held(wanted)) is None


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True), (True, True)])
def test_admin_access_on_either_side_excludes_nobody(ours: bool, theirs: bool) -> None:
    other = made("gpu-0", uid="22222222-0000-4000-8000-000000000002", admin=theirs)
    assert refusal(made("gpu-0", admin=ours), held(other)) is None


OTHER = "22222222-0000-4000-8000-000000000002"


def test_one_pod_does_not_get_the_libraries_of_two_drivers() -> None:
    other = made("gpu-1", uid=OTHER, named=generation("580.95.05"))
    refused = refusal(made("gpu-0", named=generation("590.44.1")), held(other))
    assert refused is not None
    assert refused.reason is Reason.DRIVER_MISMATCH
    assert "ml/claim-2" in refused.message
    assert "driver 590.44.1" in refused.message
    elsewhere = made(
        "gpu-1",
        uid=OTHER,
        pod="7e0e1c5a-0000-4000-8000-000000000002",
        named=generation("580.95.05"),
    )
    assert refusal(made("gpu-0", named=generation("590.44.1")), held(elsewhere)) is None


@pytest.mark.parametrize(
    ("versions", "is_refused"),
    [
        ({"0123456789": "580.95.05", "580.95.05": "580.95.05"}, False),
        ({"0123456789": "570.86.10", "580.95.05": "580.95.05"}, True),
    ],
)
def test_a_claim_that_release_0_1_0_prepared_conflicts_by_the_version_in_its_spec(
    versions: dict[str, str], is_refused: bool
) -> None:
    """Its generation is a hash of the whole node."""
    other = held(made("gpu-1", uid=OTHER, named=generation("0123456789")))
    refused = refusal(made("gpu-0", named=generation("580.95.05")), other, versions)
    assert (refused is not None) is is_refused


def test_a_gpu_that_was_missing_after_a_reboot_is_held_by_its_uuid_alone() -> None:
    """Another board may have its former address now."""
    other = made("gpu-1", uid=OTHER)
    (device,) = other.devices
    lost = other.model_copy(
        update={"devices": (device.model_copy(update={"pci": PciAddress("")}),)}
    )
    moved = Inventory((h100(0, pci=device.pci), h100(1, pci=PciAddress("0000:7f:00.0"))))
    assert refusal(made("gpu-0", inventory=moved), GpuClaimIndex([lost])) is None
    assert refusal(made("gpu-1", inventory=moved), GpuClaimIndex([lost])) is not None


def test_a_holder_with_many_pods_names_some_and_counts_the_rest() -> None:
    other = made("gpu-0", uid="22222222-0000-4000-8000-000000000002")
    many = other.model_copy(update={"pod_names": tuple(f"p-{number}" for number in range(256))})
    refused = refusal(made("gpu-0"), GpuClaimIndex([many]))
    assert refused is not None
    assert "for pod p-0, p-1, p-2 and 253 more" in refused.message
    rebuilt = other.model_copy(update={"pod_names": ()})
    refused = refusal(made("gpu-0"), GpuClaimIndex([rebuilt]))
    assert refused is not None
    assert f"for pod with UID {POD}" in refused.message


def test_a_record_that_was_rebuilt_without_its_board_holds_the_device_of_its_name() -> None:
    other = made("gpu-0", uid="22222222-0000-4000-8000-000000000002")
    (device,) = other.devices
    nameless = device.model_copy(update={"pci": PciAddress(""), "uuid": GpuUUID("")})
    rebuilt = GpuClaimIndex([other.model_copy(update={"devices": (nameless,)})])
    assert refusal(made("gpu-0"), rebuilt) is not None
    assert refusal(made("gpu-1"), rebuilt) is None


def test_what_is_put_back_leaves_nothing_behind() -> None:
    holdings = held(made("gpu-0"), made("gpu-1", uid="22222222-0000-4000-8000-000000000002"))
    for uid in tuple(holdings):
        assert holdings.remove(uid) is not None
    assert holdings.remove(ClaimUID(UID)) is None
    assert (
        refusal(made("gpu-0", "gpu-1", uid="33333333-0000-4000-8000-000000000003"), holdings)
        is None
    )
    assert not list(holdings.claims_of_pods([PodUID(POD)]))


def test_a_claim_that_is_prepared_anew_holds_only_what_it_has_now() -> None:
    holdings = held(made("gpu-0"))
    holdings.put(made("gpu-1"))
    other = "22222222-0000-4000-8000-000000000002"
    assert refusal(made("gpu-0", uid=other), holdings) is None
    assert refusal(made("gpu-1", uid=other), holdings) is not None


def test_a_record_reads_back_as_it_was_written() -> None:
    holding = made("gpu-0", "gpu-1", admin=True)
    assert GpuClaimRecord.model_validate_json(holding.model_dump_json()) == holding


def test_a_name_stands_for_the_minor_number() -> None:
    assert h100(17).name == DeviceName("gpu-17")


def refusal(
    wanted: GpuClaimRecord,
    holdings: GpuClaimIndex,
    driver_versions: Mapping[str, str] = MappingProxyType({}),
) -> DriverError | None:
    try:
        plan.check_free(wanted, holdings, driver_versions)
    except DriverError as error:
        return error
    return None


def test_each_gpu_that_is_shared_by_time_has_a_step_and_others_have_none() -> None:
    gpus = [INVENTORY.by_name[DeviceName(name)] for name in ("gpu-0", "gpu-1")]
    assert shared_by_time("gpu-0", "gpu-1", interval="Long").steps == tuple(
        ShareByTime(gpu=GpuUUID(gpu.uuid), device=gpu.name, interval="Long") for gpu in gpus
    )
    assert made("gpu-0").steps == ()
    assert shared_by_time("gpu-0", interval="Long", admin=True).steps == ()


def test_a_second_attempt_restores_what_the_first_one_found() -> None:
    record = shared_by_time("gpu-0", interval="Long")
    found = GpuSharing(interval="Short", compute_mode=3)
    (step,) = record.steps
    started = record.with_steps((step.model_copy(update={"former": found}),))
    assert record.has_same_plan(started)
    assert record.resumed(started) == started
    assert not shared_by_time("gpu-0", interval="Short").has_same_plan(started)
    assert not shared_by_time("gpu-1", interval="Long").has_same_plan(started)
