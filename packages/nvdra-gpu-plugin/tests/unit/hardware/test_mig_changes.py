# SPDX-License-Identifier: Apache-2.0
"""MIG devices of claims are made and destroyed in NVML's order, and nobody else's are touched."""

from typing import NamedTuple

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import DeviceName, GpuUUID, MigUUID
from nvdra_gpu_plugin.devices.steps import MadeInstance, MakeMigDevice
from nvdra_gpu_plugin.hardware import mig_changes
from nvdra_runtime.node.nvml import Nvml, NvmlError, ReturnCode
from nvdra_testing.hardware import divisible_gpus
from nvdra_testing.hardware.divisible_gpus import DivisibleGpu, DivisiblePynvml

SWITCH, CREATE, CREATE_COMPUTE, DESTROY_COMPUTE, DESTROY = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
LARGE = MakeMigDevice(
    gpu=GpuUUID("GPU-0"),
    device=DeviceName("gpu-0-mig-3g40gb-9-4"),
    profile_index=2,
    profile_id=9,
    compute_slices=3,
    start=4,
    size=4,
)
SMALL = LARGE.model_copy(
    update={
        "device": DeviceName("gpu-0-mig-1g10gb-19-0"),
        "profile_index": 0,
        "profile_id": 19,
        "compute_slices": 1,
        "start": 0,
        "size": 1,
    }
)
OFF = DeviceName("gpu-0")


class Bench(NamedTuple):
    pynvml: DivisiblePynvml
    nvml: Nvml
    gpu: DivisibleGpu
    kept: dict[str, MakeMigDevice]

    def make(self, step: MakeMigDevice) -> MakeMigDevice:
        mig_changes.enable_mig_mode(self.nvml, self.gpu.handle, step.device)
        instance = mig_changes.make_instance(self.nvml, self.gpu.handle, self.record(step))
        part = self.kept[step.device] = step.model_copy(update={"made_instance": instance})
        made = mig_changes.make_device(self.nvml, self.gpu.handle, part)
        return step.model_copy(update={"made": made})

    def record(self, step: MakeMigDevice) -> MakeMigDevice:
        """What the record says of an attempt that was interrupted."""
        return self.kept.get(step.device, step)

    def destroy(self, step: MakeMigDevice) -> None:
        mig_changes.destroy(self.nvml, self.gpu.handle, step)
        mig_changes.leave_mig_mode(self.nvml, self.gpu.handle, step.device)

    def exists(self, step: MakeMigDevice) -> bool:
        return mig_changes.exists(self.nvml, self.gpu.handle, step)

    def disable(self) -> None:
        mig_changes.disable_mig_mode(self.nvml, self.gpu.handle, OFF)


@pytest.fixture
def bench() -> Bench:
    pynvml = DivisiblePynvml()
    return Bench(pynvml, divisible_gpus.session(pynvml), DivisibleGpu(), {})


def test_a_device_is_made_and_destroyed_in_nvmls_order(bench: Bench) -> None:
    made = bench.make(LARGE)
    assert bench.pynvml.changes == [SWITCH, CREATE, CREATE_COMPUTE]
    assert made.made == MadeInstance(
        gpu_instance=2, compute_instance=0, uuid=MigUUID("MIG-GPU-0-2-0")
    )
    assert bench.gpu.places == [(2, 4, 1)]
    assert bench.exists(made)
    bench.pynvml.changes.clear()
    bench.destroy(made)
    assert bench.pynvml.changes == [DESTROY_COMPUTE, DESTROY, SWITCH]
    assert not bench.gpu.mode
    assert not bench.exists(made)


def test_no_mig_device_is_searched_by_its_number(bench: Bench) -> None:
    bench.make(LARGE)
    assert not bench.pynvml.count["nvmlDeviceGetMigDeviceHandleByIndex"]
    assert bench.pynvml.count["nvmlDeviceGetUUID"] == 1


def test_mig_mode_goes_with_the_last_device_only(bench: Bench) -> None:
    large, small = bench.make(LARGE), bench.make(SMALL)
    assert bench.pynvml.changes.count(SWITCH) == 1
    bench.destroy(large)
    assert bench.gpu.mode
    bench.destroy(small)
    assert not bench.gpu.mode


def test_mig_mode_stays_with_an_instance_of_an_administrator(bench: Bench) -> None:
    bench.gpu.add(1, 2, computes=0)
    bench.destroy(bench.make(LARGE))
    assert bench.gpu.mode
    assert bench.gpu.places == [(1, 2, 0)]
    assert SWITCH not in bench.pynvml.changes


def test_mig_mode_stays_on_an_ampere_gpu(bench: Bench) -> None:
    bench.gpu.architecture, bench.gpu.mode = 8, True
    bench.destroy(bench.make(LARGE))
    assert bench.gpu.mode
    assert SWITCH not in bench.pynvml.changes


@pytest.mark.parametrize("failure", ["call", "activation"])
def test_a_mode_that_cannot_be_left_stays_as_it_is(bench: Bench, failure: str) -> None:
    made = bench.make(LARGE)
    if failure == "call":
        bench.pynvml.failures[SWITCH] = [ReturnCode.IN_USE]
    else:
        bench.gpu.activation = ReturnCode.IN_USE
    with pytest.raises(DriverError) as caught:
        bench.destroy(made)
    assert caught.value.reason is Reason.DEVICE_IN_USE
    assert bench.gpu.mode
    assert bench.gpu.places == []


@pytest.mark.parametrize(
    ("code", "activation", "reason"),
    [
        (ReturnCode.IN_USE, 0, Reason.DEVICE_IN_USE),
        (0, ReturnCode.IN_USE, Reason.DEVICE_IN_USE),
        (ReturnCode.RESET_REQUIRED, 0, Reason.MIG_MODE_REQUIRES_RESET),
        (0, ReturnCode.RESET_REQUIRED, Reason.MIG_MODE_REQUIRES_RESET),
        (0, 999, Reason.MIG_MODE_REQUIRES_RESET),
        (ReturnCode.NOT_SUPPORTED, 0, Reason.MIG_MODE_REQUIRES_RESET),
    ],
)
def test_a_mode_that_is_not_in_force_says_why(
    bench: Bench, code: int, activation: int, reason: Reason
) -> None:
    bench.pynvml.failures[SWITCH] = [code]
    bench.gpu.activation = activation
    with pytest.raises(DriverError) as caught:
        bench.make(LARGE)
    assert caught.value.reason is reason
    assert CREATE not in bench.pynvml.changes


def test_no_permission_to_switch_the_mode_is_told_as_it_is(bench: Bench) -> None:
    bench.pynvml.failures[SWITCH] = [4]
    with pytest.raises(NvmlError):
        bench.make(LARGE)


def test_an_ampere_gpu_out_of_mig_mode_requires_a_reset(bench: Bench) -> None:
    bench.gpu.architecture = 8
    with pytest.raises(DriverError) as caught:
        bench.make(LARGE)
    assert caught.value.reason is Reason.MIG_MODE_REQUIRES_RESET
    assert bench.pynvml.changes == []


@pytest.mark.parametrize(
    "function",
    [CREATE, "nvmlGpuInstanceGetInfo", CREATE_COMPUTE, "nvmlComputeInstanceGetInfo_v2"],
)
@pytest.mark.parametrize("is_repeated", [False, True])
def test_what_a_failure_leaves_is_finished_or_destroyed(
    bench: Bench, function: str, *, is_repeated: bool
) -> None:
    bench.pynvml.failures[function] = [999]
    with pytest.raises(NvmlError):
        bench.make(LARGE)
    if is_repeated:
        made = bench.make(LARGE)
        assert bench.gpu.places == [(2, 4, 1)]
        bench.destroy(made)
    else:
        bench.destroy(bench.record(LARGE))
    assert bench.gpu.places == []
    assert not bench.gpu.mode


def test_what_an_administrator_makes_while_the_plugin_is_away_is_not_ours(bench: Bench) -> None:
    bench.gpu.add(2, 4)
    bench.destroy(LARGE)
    assert bench.gpu.places == [(2, 4, 1)]
    with pytest.raises(DriverError) as caught:
        bench.make(LARGE)
    assert caught.value.reason is Reason.UNKNOWN_DEVICE


def test_what_was_made_a_moment_before_the_end_is_ours(bench: Bench) -> None:
    bench.gpu.add(2, 4, computes=0)
    made = bench.make(LARGE)
    assert bench.gpu.places == [(2, 4, 1)]
    bench.destroy(made)
    bench.gpu.add(2, 4, computes=0)
    bench.destroy(LARGE)
    assert bench.gpu.places == []


def test_a_device_whose_instance_goes_while_it_is_made_is_made_again(bench: Bench) -> None:
    part = LARGE.model_copy(update={"made_instance": 7})
    with pytest.raises(DriverError, match="its GPU instance 7 is gone") as caught:
        mig_changes.make_device(bench.nvml, bench.gpu.handle, part)
    assert caught.value.reason is Reason.DEVICE_IN_USE


def test_a_device_in_use_is_destroyed_later(bench: Bench) -> None:
    made = bench.make(LARGE)
    for function, left in ((DESTROY_COMPUTE, [(2, 4, 1)]), (DESTROY, [(2, 4, 0)])):
        bench.pynvml.failures[function] = [ReturnCode.IN_USE]
        with pytest.raises(DriverError) as caught:
            bench.destroy(made)
        assert caught.value.reason is Reason.DEVICE_IN_USE
        assert bench.gpu.places == left
    bench.destroy(made)
    assert bench.gpu.places == []
    bench.destroy(made)


def test_an_instance_that_has_the_ids_of_ours_is_not_ours(bench: Bench) -> None:
    made = bench.make(SMALL)
    bench.gpu.instances.clear()
    other = bench.gpu.add(1, 4)
    bench.gpu.instances = {7: other}
    other.number = 7
    bench.destroy(made)
    assert bench.gpu.places == [(1, 4, 1)]
    assert not bench.exists(made)


def test_an_instance_at_the_place_of_ours_with_another_uuid_is_not_ours(bench: Bench) -> None:
    made = bench.make(SMALL)
    bench.gpu.instances.clear()
    bench.gpu.add(0, 0).computes[0].uuid = "MIG-other"
    bench.destroy(made)
    assert bench.gpu.places == [(0, 0, 1)]
    assert not bench.exists(made)


def test_a_foreign_instance_in_the_place_is_found_before_anything_is_done(bench: Bench) -> None:
    mig_changes.check_free(bench.nvml, bench.gpu.handle, LARGE)
    bench.gpu.add(2, 4)
    with pytest.raises(DriverError) as caught:
        mig_changes.check_free(bench.nvml, bench.gpu.handle, LARGE)
    assert caught.value.reason is Reason.UNKNOWN_DEVICE
    assert "nvidia-smi mig -dci" in caught.value.remedy
    mig_changes.check_free(bench.nvml, bench.gpu.handle, SMALL)


def test_a_foreign_instance_that_overlaps_is_named_and_left_alone(bench: Bench) -> None:
    bench.gpu.add(0, 5)
    with pytest.raises(DriverError) as caught:
        bench.make(LARGE)
    assert caught.value.reason is Reason.UNKNOWN_DEVICE
    assert "memory slices 5 to 5 are taken by MIG GPU instance 12" in caught.value.message
    bench.destroy(LARGE)
    assert bench.gpu.places == [(0, 5, 1)]


def test_a_whole_gpu_is_switched_off_mig_mode_unless_it_is_divided(bench: Bench) -> None:
    bench.disable()
    assert bench.pynvml.changes == []
    bench.gpu.mode = True
    bench.disable()
    assert not bench.gpu.mode
    bench.gpu.add(0, 3, computes=0)
    with pytest.raises(DriverError) as caught:
        bench.disable()
    assert caught.value.reason is Reason.UNKNOWN_DEVICE
    assert bench.gpu.mode


def test_a_lost_gpu_is_no_reason_to_say_that_something_was_destroyed(bench: Bench) -> None:
    made = bench.make(LARGE)
    bench.pynvml.failures["nvmlDeviceGetGpuInstanceById"] = [ReturnCode.GPU_IS_LOST]
    with pytest.raises(NvmlError):
        bench.destroy(made)
    assert bench.gpu.places == [(2, 4, 1)]
