"""A claim's results and opaque configs → what is in force for each device."""

import pytest
from nvdra_api.protocol import allocation, configs
from nvdra_api.protocol.configs import Configured
from nvdra_api.types.claims import ResourceClaim
from nvdra_api.types.configs import GpuConfig, GpuSharing, MigDeviceConfig, TimeSlicingConfig
from nvdra_api.types.errors import PermanentError, Reason, RetryableError
from nvdra_api.types.gates import Gates

GPU = "gpu.nvidia.com"
GATES = Gates.parse("TimeSlicingSettings=true,MPSSupport=true")
AT = "status.allocation.devices.config"


def result(request, device, driver=GPU):
    return {"request": request, "driver": driver, "pool": "node-a", "device": device}


def entry(parameters, *requests, source="FromClaim", driver=GPU):
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": parameters},
    }


def parameters(kind="GpuConfig", **fields):
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}


def slicing(interval):
    return parameters(
        sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    )


def sliced(interval):
    return GpuConfig(
        sharing=GpuSharing(
            strategy="TimeSlicing", time_slicing_config=TimeSlicingConfig(interval=interval)
        )
    )


def claim(results, config=()):
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ns", "name": "c", "uid": "u"},
            "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
        }
    )


def kind_of(result):
    return MigDeviceConfig if "mig" in result.device else GpuConfig


def resolve(results, config=(), gates=GATES):
    return configs.resolve(claim(results, config), GPU, kind_of, gates)


def entries(configured):
    return {item.result.device: item.entry for item in configured}


def refusal(results, config=(), gates=GATES):
    with pytest.raises(PermanentError) as caught:
        resolve(results, config, gates)
    return caught.value


def test_a_claim_that_is_not_allocated_can_be_tried_again():
    waiting = ResourceClaim.model_validate({"metadata": {"name": "c", "uid": "u"}})
    with pytest.raises(RetryableError) as caught:
        allocation.results(waiting, GPU)
    assert caught.value.reason is Reason.NOT_ALLOCATED


def test_a_claim_without_a_device_of_ours_is_not_allocated_to_us():
    with pytest.raises(RetryableError) as caught:
        resolve([result("a", "nic-0", driver="nic.example.com")])
    assert caught.value.reason is Reason.NOT_ALLOCATED


def test_only_our_results_are_ours_and_they_keep_their_order():
    both = claim([result("b", "gpu-1"), result("n", "nic-0", "nic.example.com"), result("a", "g")])
    assert [ours.device for ours in allocation.results(both, GPU)] == ["gpu-1", "g"]


def test_without_configs_every_device_has_the_default_of_its_kind():
    configured = resolve([result("a", "gpu-0"), result("b", "gpu-1-mig-1g5gb-19-0")])
    assert [item.config for item in configured] == [GpuConfig(), MigDeviceConfig()]
    assert entries(configured) == {"gpu-0": None, "gpu-1-mig-1g5gb-19-0": None}


@pytest.mark.protocol("P21")
def test_the_worked_example_of_the_specification():
    configured = resolve(
        [
            result("ts-gpu", "gpu-0"),
            result("mps-gpu", "gpu-1"),
            result("mig", "gpu-2-mig-1g10gb-19-0"),
        ],
        [
            entry(parameters(), source="FromClass"),
            entry(slicing("Long"), "ts-gpu"),
            entry(parameters(sharing={"strategy": "MPS"}), "mps-gpu"),
        ],
    )
    assert entries(configured) == {"gpu-0": 1, "gpu-1": 2, "gpu-2-mig-1g10gb-19-0": None}
    assert configured[0].config == sliced("Long")


def test_the_claim_beats_the_class_whatever_the_order():
    configured = resolve(
        [result("a", "gpu-0")],
        [entry(slicing("Long")), entry(slicing("Short"), source="FromClass")],
    )
    assert configured == (Configured(configured[0].result, sliced("Long"), 0),)


@pytest.mark.protocol("P21")
def test_of_two_configs_of_one_source_the_later_one_is_in_force():
    configured = resolve(
        [result("a", "gpu-0")], [entry(slicing("Long"), "a"), entry(slicing("Short"))]
    )
    assert entries(configured) == {"gpu-0": 1}


@pytest.mark.protocol("P22")
@pytest.mark.parametrize("name", ["gpu", "gpu/high"])
def test_a_config_for_a_prioritised_request_may_name_the_main_or_the_whole_one(name):
    configured = resolve([result("gpu/high", "gpu-0")], [entry(slicing("Long"), name)])
    assert entries(configured) == {"gpu-0": 0}


@pytest.mark.protocol("P22")
def test_a_config_for_another_alternative_is_not_in_force():
    configured = resolve([result("gpu/high", "gpu-0")], [entry(slicing("Long"), "gpu/low")])
    assert entries(configured) == {"gpu-0": None}


def test_configs_of_other_drivers_are_left_alone():
    configured = resolve([result("a", "gpu-0")], [entry({"any": 1}, driver="nic.example.com")])
    assert entries(configured) == {"gpu-0": None}


@pytest.mark.protocol("P21")
def test_a_config_for_all_requests_passes_by_devices_of_another_kind():
    configured = resolve(
        [result("a", "gpu-0"), result("b", "gpu-1-mig-1g5gb-19-0")], [entry(slicing("Long"))]
    )
    assert entries(configured) == {"gpu-0": 0, "gpu-1-mig-1g5gb-19-0": None}


def test_a_config_that_lists_a_device_of_another_kind_is_refused():
    error = refusal([result("a", "gpu-0")], [entry(parameters("MigDeviceConfig"), "a")])
    assert error.reason is Reason.INVALID_CONFIG
    assert error.facts["field"] == f"{AT}[0].opaque.parameters"
    assert "cannot apply MigDeviceConfig to device gpu-0 of request a" in str(error)


def test_of_two_configs_that_do_not_fit_the_one_in_force_is_told():
    misfit = entry(parameters("MigDeviceConfig"), "a")
    error = refusal([result("a", "gpu-0")], [misfit, misfit])
    assert error.message.count("cannot apply") == 1
    assert error.facts["field"] == f"{AT}[1].opaque.parameters"


def test_the_same_config_repeated_by_an_old_scheduler_is_in_force_once():
    twice = [entry(slicing("Long"), source="FromClass")] * 2
    assert entries(resolve([result("a", "gpu-0"), result("b", "gpu-1")], twice)) == {
        "gpu-0": 1,
        "gpu-1": 1,
    }


def test_a_kind_of_the_other_driver_is_told_which_kinds_are_right():
    wrong = entry(parameters("ComputeDomainChannelConfig", domainID="x"))
    assert (
        "a ComputeDomainChannelConfig is not for gpu.nvidia.com, which takes GpuConfig, "
        "MigDeviceConfig, VfioDeviceConfig"
    ) in str(refusal([result("a", "gpu-0")], [wrong]))


def test_a_typing_mistake_is_told_with_its_field():
    error = refusal([result("a", "gpu-0")], [entry(parameters(unexpectedField=1))])
    assert error.reason is Reason.INVALID_CONFIG
    assert (
        f"{AT}[0].opaque.parameters: error decoding config parameters: "
        'strict decoding error: unknown field "unexpectedField"'
    ) in str(error)


def test_an_entry_without_parameters_and_one_of_unknown_source_are_refused():
    error = refusal(
        [result("a", "gpu-0")],
        [{"source": "FromClaim"}, entry(parameters(), source="FromNowhere")],
    )
    assert "only opaque parameters are supported" in str(error)
    assert "invalid config source: FromNowhere" in str(error)


def test_everything_that_is_wrong_is_told_at_once():
    error = refusal(
        [result("a", "gpu-0"), result("b", "gpu-1")],
        [
            entry(slicing("Forever"), "a"),
            entry(parameters(sharing={"strategy": "Foo"}), "b"),
            entry(parameters(typo=1), "c"),
        ],
    )
    for part in ("Forever", "unknown GPU sharing strategy: Foo", 'unknown field "typo"'):
        assert part in error.message


def test_a_gate_that_is_off_has_its_own_reason():
    error = refusal([result("a", "gpu-0")], [entry(slicing("Long"))], gates=Gates())
    assert error.reason is Reason.FEATURE_GATE_DISABLED
    assert error.facts["field"] == f"{AT}[0].opaque.parameters.sharing.strategy"


def test_a_gate_and_a_mistake_together_are_an_invalid_config():
    error = refusal([result("a", "gpu-0")], [entry(slicing("Forever"))], gates=Gates())
    assert error.reason is Reason.INVALID_CONFIG


def test_a_config_that_is_in_force_nowhere_is_not_held_against_the_claim():
    configured = resolve([result("a", "gpu-0")], [entry(slicing("Long"), "other")], gates=Gates())
    assert entries(configured) == {"gpu-0": None}


def test_a_config_shared_by_two_devices_is_told_about_once():
    error = refusal([result("a", "gpu-0"), result("b", "gpu-1")], [entry(slicing("Forever"))])
    assert error.message.count("Forever") == 1
