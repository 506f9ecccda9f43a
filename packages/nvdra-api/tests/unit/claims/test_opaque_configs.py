# SPDX-License-Identifier: Apache-2.0
"""Opaque configs of a claim, resolved for each of its devices."""

from collections.abc import Sequence
from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.gates import FeatureGates
from nvdra_api.resource.claims import DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import (
    ComputeDomainChannelConfig,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
)
from nvdra_api.v1beta1.gpu_config import GpuSharing
from nvdra_api.v1beta1.sharing import TimeSlicingConfig
from nvdra_runtime.claims import allocation, opaque_configs
from nvdra_runtime.claims.opaque_configs import ConfiguredResult

Json = dict[str, Any]

GPU = "gpu.nvidia.com"
DOMAINS = "compute-domain.nvidia.com"
GATES = FeatureGates.parse("TimeSlicingSettings=true,MPSSupport=true")
AT = "status.allocation.devices.config"


def result(request: str, device: str, driver: str = GPU) -> Json:
    return {"request": request, "driver": driver, "pool": "node-a", "device": device}


def entry(parameters: Json, *requests: str, source: str = "FromClaim", driver: str = GPU) -> Json:
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": parameters},
    }


def parameters(kind: str = "GpuConfig", **fields: Any) -> Json:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}


def slicing(interval: str) -> Json:
    return parameters(
        sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    )


def sliced(interval: str) -> GpuConfig:
    return GpuConfig(
        sharing=GpuSharing(
            strategy="TimeSlicing", time_slicing_config=TimeSlicingConfig(interval=interval)
        )
    )


def claim(results: Sequence[Json], config: Sequence[Json] = ()) -> ResourceClaim:
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ns", "name": "c", "uid": "u"},
            "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
        }
    )


def kind_of(result: DeviceRequestAllocationResult) -> type[DeviceConfig]:
    return MigDeviceConfig if "mig" in result.device else GpuConfig


def resolve(
    results: Sequence[Json], config: Sequence[Json] = (), gates: FeatureGates = GATES
) -> tuple[ConfiguredResult, ...]:
    return opaque_configs.resolve(claim(results, config), GPU, kind_of, gates)


def entries(configured: Sequence[ConfiguredResult]) -> dict[str, int | None]:
    return {item.result.device: item.config_index for item in configured}


def refusal(
    results: Sequence[Json], config: Sequence[Json] = (), gates: FeatureGates = GATES
) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        resolve(results, config, gates)
    return caught.value


def test_a_claim_without_allocation_is_a_retryable_error() -> None:
    waiting = ResourceClaim.model_validate({"metadata": {"name": "c", "uid": "u"}})
    with pytest.raises(RetryableError) as caught:
        allocation.results(waiting, GPU)
    assert caught.value.reason is Reason.NOT_ALLOCATED


def test_a_claim_without_a_device_of_the_driver_is_not_allocated() -> None:
    with pytest.raises(RetryableError) as caught:
        resolve([result("a", "nic-0", driver="nic.example.com")])
    assert caught.value.reason is Reason.NOT_ALLOCATED


def test_the_results_of_the_driver_keep_their_order() -> None:
    both = claim([result("b", "gpu-1"), result("n", "nic-0", "nic.example.com"), result("a", "g")])
    assert [ours.device for ours in allocation.results(both, GPU)] == ["gpu-1", "g"]


def test_without_configs_every_device_gets_the_default_of_its_kind() -> None:
    configured = resolve([result("a", "gpu-0"), result("b", "gpu-1-mig-1g5gb-19-0")])
    assert [item.config for item in configured] == [GpuConfig(), MigDeviceConfig()]
    assert entries(configured) == {"gpu-0": None, "gpu-1-mig-1g5gb-19-0": None}


@pytest.mark.protocol("P21")
def test_a_class_config_and_two_claim_configs_apply_to_their_requests() -> None:
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


def test_a_config_of_the_claim_takes_precedence_over_one_of_the_class() -> None:
    configured = resolve(
        [result("a", "gpu-0")],
        [entry(slicing("Long")), entry(slicing("Short"), source="FromClass")],
    )
    (only,) = configured
    assert only == ConfiguredResult(only.result, sliced("Long"), 0, is_of_claim=True)


def test_a_config_of_the_class_is_not_one_of_the_claim() -> None:
    (only,) = resolve([result("a", "gpu-0")], [entry(slicing("Long"), source="FromClass")])
    assert only == ConfiguredResult(only.result, sliced("Long"), 0, is_of_claim=False)
    (only,) = resolve([result("a", "gpu-0")])
    assert not only.is_of_claim


@pytest.mark.protocol("P21")
def test_of_two_configs_of_one_source_the_later_one_applies() -> None:
    configured = resolve(
        [result("a", "gpu-0")], [entry(slicing("Long"), "a"), entry(slicing("Short"))]
    )
    assert entries(configured) == {"gpu-0": 1}


@pytest.mark.protocol("P22")
@pytest.mark.parametrize("name", ["gpu", "gpu/high"])
def test_a_config_may_name_the_main_request_or_the_subrequest(name: str) -> None:
    configured = resolve([result("gpu/high", "gpu-0")], [entry(slicing("Long"), name)])
    assert entries(configured) == {"gpu-0": 0}


@pytest.mark.protocol("P22")
def test_a_config_for_another_subrequest_does_not_apply() -> None:
    configured = resolve([result("gpu/high", "gpu-0")], [entry(slicing("Long"), "gpu/low")])
    assert entries(configured) == {"gpu-0": None}


def test_configs_of_other_drivers_are_ignored() -> None:
    configured = resolve([result("a", "gpu-0")], [entry({"any": 1}, driver="nic.example.com")])
    assert entries(configured) == {"gpu-0": None}


@pytest.mark.protocol("P21")
def test_a_config_for_all_requests_does_not_apply_to_devices_of_another_kind() -> None:
    configured = resolve(
        [result("a", "gpu-0"), result("b", "gpu-1-mig-1g5gb-19-0")], [entry(slicing("Long"))]
    )
    assert entries(configured) == {"gpu-0": 0, "gpu-1-mig-1g5gb-19-0": None}


def test_a_config_that_lists_a_device_of_another_kind_is_refused() -> None:
    error = refusal([result("a", "gpu-0")], [entry(parameters("MigDeviceConfig"), "a")])
    assert error.reason is Reason.INVALID_CONFIG
    assert error.facts["field"] == f"{AT}[0].opaque.parameters"
    assert "cannot apply MigDeviceConfig to device gpu-0 of request a" in str(error)


def test_of_two_configs_that_do_not_fit_the_later_one_is_named() -> None:
    misfit = entry(parameters("MigDeviceConfig"), "a")
    error = refusal([result("a", "gpu-0")], [misfit, misfit])
    assert error.message.count("cannot apply") == 1
    assert error.facts["field"] == f"{AT}[1].opaque.parameters"


def test_a_config_that_an_old_scheduler_repeats_applies_once() -> None:
    twice = [entry(slicing("Long"), source="FromClass")] * 2
    assert entries(resolve([result("a", "gpu-0"), result("b", "gpu-1")], twice)) == {
        "gpu-0": 1,
        "gpu-1": 1,
    }


def test_an_error_for_a_kind_of_another_driver_names_the_valid_kinds() -> None:
    wrong = entry(parameters("ComputeDomainChannelConfig", domainID="x"))
    told = str(refusal([result("a", "gpu-0")], [wrong]))
    assert (
        "gpu.nvidia.com does not accept ComputeDomainChannelConfig; kinds of gpu.nvidia.com are "
        "GpuConfig, MigDeviceConfig, VfioDeviceConfig, of resource.nvidia.com/v1beta1"
    ) in told
    assert told.count("GpuConfig") == 1


def test_an_unknown_field_is_named() -> None:
    error = refusal([result("a", "gpu-0")], [entry(parameters(unexpectedField=1))])
    assert error.reason is Reason.INVALID_CONFIG
    assert (
        f"{AT}[0].opaque.parameters: error decoding config parameters: "
        'strict decoding error: unknown field "unexpectedField"'
    ) in str(error)


def test_an_entry_without_parameters_and_one_of_unknown_source_are_refused() -> None:
    error = refusal(
        [result("a", "gpu-0")],
        [{"source": "FromClaim"}, entry(parameters(), source="FromNowhere")],
    )
    assert "only opaque parameters are supported" in str(error)
    assert "invalid config source: FromNowhere" in str(error)


def test_an_error_names_every_problem() -> None:
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


def test_a_disabled_gate_has_its_own_reason() -> None:
    error = refusal([result("a", "gpu-0")], [entry(slicing("Long"))], gates=FeatureGates())
    assert error.reason is Reason.FEATURE_GATE_DISABLED
    assert "if it was enabled just now, wait" in error.remedy
    assert error.facts["field"] == f"{AT}[0].opaque.parameters.sharing.strategy"


def test_a_disabled_gate_and_a_mistake_are_an_invalid_config() -> None:
    error = refusal([result("a", "gpu-0")], [entry(slicing("Forever"))], gates=FeatureGates())
    assert error.reason is Reason.INVALID_CONFIG


def test_a_config_that_applies_to_no_device_is_not_validated() -> None:
    configured = resolve(
        [result("a", "gpu-0")], [entry(slicing("Long"), "other")], gates=FeatureGates()
    )
    assert entries(configured) == {"gpu-0": None}


def test_a_config_for_two_devices_is_reported_once() -> None:
    error = refusal([result("a", "gpu-0"), result("b", "gpu-1")], [entry(slicing("Forever"))])
    assert error.message.count("Forever") == 1


@pytest.mark.parametrize(
    "unreadable",
    [
        parameters("ComputeDomainChannelConfig", domainID="an-id", typo=1),
        parameters("ComputeDomainChannelConfig", domainID=7),
        parameters("ComputeDomainChanelConfig", domainID="an-id"),
    ],
    ids=["unknown field", "wrong type", "unknown kind"],
)
@pytest.mark.parametrize("requests", [(), ("channel",)])
def test_a_config_that_cannot_be_read_is_the_only_problem(
    unreadable: Json, requests: tuple[str, ...]
) -> None:
    of_class = entry(
        parameters("ComputeDomainChannelConfig"), source="FromClass", driver=DOMAINS
    )  # without a domainID, but the claim's config takes precedence
    bad = claim(
        [result("channel", "channel-0", driver=DOMAINS)],
        [of_class, entry(unreadable, *requests, driver=DOMAINS)],
    )
    with pytest.raises(PermanentError) as caught:
        opaque_configs.resolve(bad, DOMAINS, lambda _: ComputeDomainChannelConfig, GATES)
    assert caught.value.facts["field"] == f"{AT}[1].opaque.parameters"
    assert caught.value.message.count(AT) == 1
    assert "domainID cannot be empty" not in caught.value.message


def test_of_an_unknown_source_only_the_source_is_a_problem() -> None:
    given = parameters("ComputeDomainChannelConfig", domainID="an-id")
    bad = claim(
        [result("channel", "channel-0", driver=DOMAINS)],
        [entry(given, source="FromNowhere", driver=DOMAINS)],
    )
    with pytest.raises(PermanentError) as caught:
        opaque_configs.resolve(bad, DOMAINS, lambda _: ComputeDomainChannelConfig, GATES)
    assert caught.value.message.count(AT) == 1
    assert caught.value.facts["field"] == f"{AT}[0].source"
    assert "domainID" not in caught.value.message


def test_of_a_config_of_another_kind_only_the_kind_is_a_problem() -> None:
    given = parameters("ComputeDomainDaemonConfig", domainID="an-id")
    bad = claim(
        [result("channel", "channel-0", driver=DOMAINS)], [entry(given, "channel", driver=DOMAINS)]
    )
    with pytest.raises(PermanentError, match="cannot apply") as caught:
        opaque_configs.resolve(bad, DOMAINS, lambda _: ComputeDomainChannelConfig, GATES)
    assert "domainID" not in caught.value.message


def test_other_requests_and_what_takes_precedence_are_validated_beside_an_unreadable_config() -> (
    None
):
    unreadable = parameters(typo=1)
    error = refusal(
        [result("a", "gpu-0"), result("b", "gpu-1")],
        [entry(unreadable, "a"), entry(slicing("Forever"), "b")],
    )
    assert error.message.count(AT) == 2
    error = refusal(
        [result("a", "gpu-0")],
        [entry(unreadable, source="FromClass"), entry(slicing("Forever"))],
    )
    assert "Forever" in error.message


GPU_0, MIG_1 = result("a", "gpu-0"), result("b", "gpu-1-mig-1g5gb-19-0")
TAKES_MIG = "gpu-1-mig-1g5gb-19-0 of request b takes MigDeviceConfig"


@pytest.mark.parametrize(
    ("results", "config", "why"),
    [
        ([MIG_1], [entry(parameters())], TAKES_MIG),
        ([MIG_1], [entry(parameters(), source="FromClass")], ""),
        ([MIG_1, GPU_0], [entry(parameters())], ""),
        ([GPU_0], [entry(parameters()), entry(parameters())], ""),
        ([GPU_0], [entry(parameters(), "b")], "none of its requests has a device of this driver"),
        ([GPU_0], [entry({"any": 1}, driver="nic.example.com")], ""),
    ],
    ids=["of another kind", "of a class", "of one device", "overridden", "of others", "not ours"],
)
def test_a_config_of_the_claim_that_applies_to_no_device_is_told(
    results: Sequence[Json], config: Sequence[Json], why: str
) -> None:
    asked = claim(results, config)
    told = list(opaque_configs.unapplied(asked, GPU, resolve(results, config)))
    wanted = f"{AT}[0], a GpuConfig, has no effect: {why}"
    assert told == ([wanted] if why else [])


def test_of_alternatives_each_may_have_its_config() -> None:
    results, config = [result("b/mig", "gpu-1-mig-1g5gb-19-0")], [entry(parameters())]
    asked = claim(results, config)
    assert list(opaque_configs.unapplied(asked, GPU, resolve(results, config)))
    alternatives = [{"name": name, "deviceClassName": "c"} for name in ("gpu", "mig")]
    document = asked.model_dump(by_alias=True, mode="json", exclude_none=True)
    document["spec"] = {"devices": {"requests": [{"name": "b", "firstAvailable": alternatives}]}}
    asked = ResourceClaim.model_validate(document)
    assert not list(opaque_configs.unapplied(asked, GPU, resolve(results, config)))


def test_an_error_says_what_may_be_meant_and_where_to_correct_it() -> None:
    results, config = [GPU_0], [entry(parameters(sharng={}))]
    error = refusal(results, config)
    assert 'unknown field "sharng"; did you mean "sharing"?' in error.message
    assert error.remedy.endswith("and create the claim anew")
    assert "wait" not in error.remedy
    document = claim(results, config).model_dump(by_alias=True, mode="json", exclude_none=True)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "v", "controller": True}
    document["metadata"]["ownerReferences"] = [owner]
    with pytest.raises(PermanentError) as caught:
        opaque_configs.resolve(ResourceClaim.model_validate(document), GPU, kind_of, GATES)
    assert "in the ResourceClaimTemplate" in caught.value.remedy
    assert caught.value.remedy.endswith("and delete the pod: the next one gets a new claim")


def test_an_error_of_a_value_says_what_would_be_right() -> None:
    mps = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}
    error = refusal([GPU_0], [entry(parameters(sharing=mps))])
    assert "must not be greater than 100; write a whole number from 0 to 100" in error.message
