"""What can be made on a GPU, as NVML lists it."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_testing.hardware import mig_oracle
from nvdra_testing.hardware.mig_oracle import MigOracle, Place

SIMULATED = sorted(set(mig_oracle.gpus()) - {"h100-94"})
FUNCTION = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
REFUSED = {"match": {"function": FUNCTION}, "result": "no_permission"}
MIG = {"mode": True}


def places(gpu: Gpu) -> list[Place]:
    return [Place(each.profile.name, each.placement.start) for each in gpu.partitions]


@pytest.mark.parametrize("model", SIMULATED)
def test_everything_that_nvidia_documents_can_be_made_and_nothing_else(
    describe: Callable[..., Gpu], model: str
) -> None:
    found = places(describe(model, mig=MIG))
    assert len(found) == len(set(found))
    assert set(found) == MigOracle.of(model).places


def test_partitions_are_in_the_order_of_their_names(describe: Callable[..., Gpu]) -> None:
    names = [each.name for each in describe("h100").partitions]
    assert names == sorted(names)
    assert names[0] == "gpu-0-mig-1g10gb-19-0"
    assert names[-1] == "gpu-0-mig-7g80gb-0-0"


@pytest.mark.parametrize(
    ("model", "fields", "count"),
    [
        ("h100", {}, 25),
        ("h100", {"mig": MIG}, 25),
        ("h100", {"virtualization": 2}, 0),
        ("a100-40", {}, 0),
        ("a100-40", {"mig": MIG}, 25),
        ("t4", {}, 0),
    ],
)
def test_a_gpu_has_partitions_if_it_can_be_in_mig_mode_without_a_reset(
    describe: Callable[..., Gpu], model: str, fields: dict[str, Any], count: int
) -> None:
    assert len(describe(model, **fields).partitions) == count


def test_a_gpu_that_does_not_say_what_can_be_made_is_served_whole(
    describe: Callable[..., Gpu], caplog: pytest.LogCaptureFixture
) -> None:
    gpu = describe("h100", faults=[REFUSED])
    assert (gpu.partitions, gpu.devices) == ((), (gpu,))
    assert "No MIG devices can be made on a GPU" in caplog.text


def test_what_cannot_change_is_not_asked_again(describe: Callable[..., Gpu]) -> None:
    gpu = describe("h100")
    again = describe("h100", known=gpu, faults=[REFUSED], minor=3)
    assert places(again) == places(gpu)
    assert {each.parent_minor for each in again.partitions} == {3}
    assert again.partitions[0].name.startswith("gpu-3-mig-")
