# SPDX-License-Identifier: Apache-2.0
"""What can be made on a GPU, as NVML lists it."""

from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from nvdra_gpu_plugin.devices import device_identity
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.devices.mig_profiles import Placement
from nvdra_gpu_plugin.hardware import mig_changes, mig_discovery
from nvdra_gpu_plugin.hardware.discovery import DiscoveredGpu
from nvdra_runtime.node.nvml import Nvml, NvmlError, ReturnCode
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


@pytest.mark.parametrize("model", SIMULATED)
def test_everything_that_is_listed_can_be_made_and_destroyed(
    describe: Callable[..., Gpu], model: str
) -> None:
    gpu = describe(model, mig=MIG)
    nvml = Nvml(pynvml, lambda *_: None)
    handle = nvml.handle_by_index(0)
    for partition in gpu.partitions:
        step = device_identity.make_mig_device(partition)
        mig_changes.enable_mig_mode(nvml, handle, step.device)
        instance = mig_changes.make_instance(nvml, handle, step)
        part = step.model_copy(update={"made_instance": instance})
        made = part.model_copy(update={"made": mig_changes.make_device(nvml, handle, part)})
        assert mig_changes.exists(nvml, handle, made)
        mig_changes.destroy(nvml, handle, made)
        assert not mig_changes.exists(nvml, handle, made)


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


def test_without_device_numbers_of_capabilities_nothing_can_be_made_until_there_are(
    discover: Callable[..., DiscoveredGpu],
) -> None:
    found = discover("h100", devices="195 nvidia\n505 nvidia-capsule\n")
    assert found.gpu.devices == (found.gpu,)
    assert "/devices does not list nvidia-caps" in found.partitions_problem
    assert "global.procRoot" in found.partitions_problem
    again = discover("h100", known=found.gpu)
    assert (len(again.gpu.partitions), again.partitions_problem) == (25, "")
    lost = discover("h100", known=again.gpu, devices="195 nvidia\n")
    assert (lost.gpu.partitions, bool(lost.partitions_problem)) == ((), True)


def test_a_gpu_without_mig_lacks_nothing_without_capabilities(
    discover: Callable[..., DiscoveredGpu],
) -> None:
    assert discover("t4", devices="195 nvidia\n").partitions_problem == ""


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstanceProfileInfoV", FUNCTION],
)
def test_a_call_that_fails_once_leaves_it_open_what_can_be_made(
    describe: Callable[..., Gpu], nvml_on: Callable[..., None], function: str
) -> None:
    gpu = describe("h100")
    fault = {"match": {"function": function}, "result": "unknown", "times": 1}
    nvml_on(None, gpus=[{"model": "h100", "bus_id": "0000:10:00.0", "minor": 0}], faults=[fault])
    nvml = Nvml(pynvml, lambda *_: None)
    handle = nvml.handle_by_index(0)
    found, problem = mig_discovery.describe_partitions(nvml, gpu, handle)
    assert (found, "(NVML error 999)" in problem) == ((), True)
    assert mig_discovery.describe_partitions(nvml, gpu, handle) == (gpu.partitions, "")


def test_a_gpu_that_is_lost_while_it_is_asked_what_can_be_made_is_not_described_without_it(
    describe: Callable[..., Gpu],
) -> None:
    lost = {**REFUSED, "result": "gpu_is_lost"}
    with pytest.raises(NvmlError) as raised:
        describe("h100", faults=[lost])
    assert raised.value.code == ReturnCode.GPU_IS_LOST


def test_a_gpu_that_leaves_the_bus_while_it_is_asked_what_can_be_made_is_not_described_without_it(
    describe: Callable[..., Gpu], nvml_on: Callable[..., None]
) -> None:
    gpu = describe("h100")
    names = (FUNCTION, "nvmlDeviceGetMemoryInfo")
    gone = [{"match": {"function": name}, "result": "invalid_argument"} for name in names]
    nvml_on(None, gpus=[{"model": "h100", "bus_id": "0000:10:00.0", "minor": 0}], faults=gone)
    nvml = Nvml(pynvml, lambda *_: None)
    with pytest.raises(NvmlError, match="nvmlDeviceGetMemoryInfo"):
        mig_discovery.describe_partitions(nvml, gpu, nvml.handle_by_index(0))


def test_what_cannot_change_is_not_asked_again(describe: Callable[..., Gpu]) -> None:
    gpu = describe("h100")
    again = describe("h100", known=gpu, faults=[REFUSED], minor=3)
    assert places(again) == places(gpu)
    assert {each.parent_number for each in again.partitions} == {3}
    assert again.partitions[0].name.startswith("gpu-3-mig-")


THEIRS = [
    {"profile": "1g.10gb", "start": 0, "compute": ["1c"]},
    {"profile": "2g.20gb", "start": 2},
    {"profile": "3g.40gb", "start": 4},
]


def test_instances_without_a_compute_instance_are_told_apart(describe: Callable[..., Gpu]) -> None:
    gpu = describe("h100", mig={"mode": True, "instances": THEIRS})
    assert [mig.name for mig in gpu.mig_devices] == ["gpu-0-mig-1g10gb-19-0"]
    found = {each.profile.name: each.placement for each in gpu.bare_instances}
    assert found == {"2g.20gb": Placement(2, 2), "3g.40gb": Placement(4, 4)}
    assert not gpu.offers_whole


def test_a_half_made_device_of_a_claim_is_the_claims(describe: Callable[..., Gpu]) -> None:
    gpu = describe("h100", mig={"mode": True, "instances": THEIRS[1:]})
    ours = mig_discovery.without_made(gpu, frozenset({(14, 2), (9, 4)}))
    assert ours == describe("h100")
    one = mig_discovery.without_made(gpu, frozenset({(14, 2)}))
    assert [each.placement.start for each in one.bare_instances] == [4]
    assert one.is_mig_enabled
