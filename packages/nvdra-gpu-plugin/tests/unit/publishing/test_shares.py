# SPDX-License-Identifier: Apache-2.0
"""Devices for several claims: what is published of them, and what a claim consumes by default."""

import pytest
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import Device, DeviceCapacity
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.publishing import layout, shares
from nvdra_gpu_plugin.share_policy import SharePolicy
from nvdra_runtime.resourceslices.arrangement import SPLIT
from nvdra_testing.hardware.gpus import h100, in_mig_mode
from nvdra_testing.node import divisible_node

NODE = NodeName("node-a")
MIB = 1024 * 1024
UNLIMITED, BY_MEMORY, FOUR = SharePolicy(), SharePolicy(is_by_memory=True), SharePolicy(shares=4)


def device(**capacity: int) -> Device:
    amounts = {
        name: DeviceCapacity(value=Quantity.binary(amount)) for name, amount in capacity.items()
    }
    return Device(name=DeviceName("gpu-0"), capacity=amounts)


def capacity(found: Device) -> dict[str, JsonObject]:
    """The capacities as they are written."""
    return {
        name: each.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, each in found.capacity.items()
    }


def limited(value: str, default: str, least: str, step: str | None) -> JsonObject:
    """A capacity with its policy."""
    found = {"min": least, "max": value, **({} if step is None else {"step": step})}
    return {"value": value, "requestPolicy": {"default": default, "validRange": found}}


@pytest.mark.parametrize(
    ("policy", "memory", "expected"),
    [
        (UNLIMITED, 10 * MIB + 500, {"memory": limited("10Mi", "0", "0", "1Mi")}),
        (BY_MEMORY, 16384 * MIB, {"memory": limited("16Gi", "16Gi", "1Mi", "1Mi")}),
        (BY_MEMORY, MIB, {"memory": limited("1Mi", "1Mi", "1Mi", None)}),
        (
            FOUR,
            81559 * MIB,
            {
                "memory": limited("81559Mi", "0", "0", "1Mi"),
                "shares": limited("4", "1", "1", "1"),
            },
        ),
        (
            SharePolicy(shares=1),
            16384 * MIB,
            {"memory": limited("16Gi", "0", "0", "1Mi"), "shares": limited("1", "1", "1", None)},
        ),
        (
            SharePolicy(shares=2000),
            16384 * MIB,
            {"memory": limited("16Gi", "0", "0", "1Mi"), "shares": limited("2k", "1", "1", "1")},
        ),
    ],
)
def test_each_policy_divides_a_gpu_in_its_way(
    policy: SharePolicy, memory: int, expected: dict[str, JsonObject]
) -> None:
    found = shares.shared(device(memory=memory), policy)
    assert found.allow_multiple_allocations
    assert capacity(found) == expected


def test_a_claim_takes_no_engine_that_it_does_not_ask_for() -> None:
    """A capacity without a policy would be taken whole by the first claim."""
    found = shares.shared(device(memory=16384 * MIB, multiprocessors=132, encoders=0), FOUR)
    assert capacity(found)["multiprocessors"] == limited("132", "0", "0", "1")
    assert capacity(found)["encoders"] == {"value": "0"}


def test_a_gpu_without_known_memory_has_shares_and_is_not_divided_by_memory() -> None:
    found = shares.shared(device(), FOUR)
    assert capacity(found) == {"shares": limited("4", "1", "1", "1")}
    assert shares.shared(device(), UNLIMITED).allow_multiple_allocations
    alone = shares.shared(device(), BY_MEMORY)
    assert alone == device(), "every claim would fit"


@pytest.mark.parametrize("before", [UNLIMITED, BY_MEMORY, FOUR])
@pytest.mark.parametrize("now", [None, UNLIMITED, BY_MEMORY, FOUR])
def test_what_was_published_under_another_policy_follows_the_present_one(
    before: SharePolicy, now: SharePolicy | None
) -> None:
    plain = device(memory=16384 * MIB, decoders=7)
    assert shares.shared(shares.shared(plain, before), now) == shares.shared(plain, now)


def test_the_whole_of_a_gpu_with_partitions_is_shared_and_its_partitions_are_not() -> None:
    """They are made for the claim that holds them, and destroyed with it."""
    inventory = Inventory(divisible_node.GPUS)
    pool = layout.pool(inventory, FeatureGates(), NODE, limits=SPLIT, policy=FOUR)
    shared = {each.name for each in pool.content.devices if each.allow_multiple_allocations}
    assert shared == {gpu.name for gpu in inventory.gpus}
    assert len(pool.content.devices) > len(shared)


def test_a_mig_device_of_an_administrator_is_shared_within_the_limits_of_a_device() -> None:
    """The largest one has 15 capacities and 16 attributes; 32 are accepted together."""
    pool = layout.pool(Inventory((in_mig_mode(0, (0, 0)),)), FeatureGates(), NODE, policy=FOUR)
    (mig,) = pool.content.devices
    assert mig.allow_multiple_allocations
    assert capacity(mig)["memorySlice0"] == limited("1", "0", "0", "1")
    assert len(mig.capacity) + len(mig.attributes) <= 32


def test_awaited_devices_follow_the_policy_too() -> None:
    inventory = Inventory((h100(0),))
    former = layout.pool(inventory, FeatureGates(), NODE, policy=FOUR).content
    awaited = layout.pool(Inventory(), FeatureGates(), NODE, former).content
    (alone,) = awaited.devices
    assert alone.allow_multiple_allocations is None
    assert set(alone.capacity) == {"memory"}
    assert layout.pool(Inventory(), FeatureGates(), NODE, awaited, policy=FOUR).content == former
