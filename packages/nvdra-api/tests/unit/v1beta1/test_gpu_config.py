# SPDX-License-Identifier: Apache-2.0
"""GpuConfig: implied defaults, and the problems of its sharing settings."""

import pytest
from nvdra_api.errors import Reason
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.v1beta1 import GpuConfig
from nvdra_api.v1beta1.gpu_config import GpuSharing
from nvdra_api.v1beta1.sharing import MpsConfig, TimeSlicingConfig

NO_GATES = FeatureGates()
ALL = FeatureGates.parse("TimeSlicingSettings=true,MPSSupport=true")


def shared(
    strategy: str, *, slicing: TimeSlicingConfig | None = None, mps: MpsConfig | None = None
) -> GpuConfig:
    return GpuConfig(
        sharing=GpuSharing(strategy=strategy, time_slicing_config=slicing, mps_config=mps)
    )


def texts(config: GpuConfig) -> list[str]:
    return [problem.text for problem in config.normalized(ALL).problems(ALL)]


def test_a_config_without_sharing_is_valid_whatever_the_gates_are() -> None:
    assert GpuConfig().normalized(NO_GATES) == GpuConfig()
    assert GpuConfig().problems(NO_GATES) == ()


@pytest.mark.parametrize("slicing", [None, TimeSlicingConfig(), TimeSlicingConfig(interval=None)])
def test_time_slicing_without_an_interval_means_the_default_interval(
    slicing: TimeSlicingConfig | None,
) -> None:
    normalized = shared("TimeSlicing", slicing=slicing).normalized(ALL)
    assert normalized == shared("TimeSlicing", slicing=TimeSlicingConfig(interval="Default"))
    assert normalized.problems(ALL) == ()


@pytest.mark.parametrize("interval", ["Default", "Short", "Medium", "Long"])
def test_the_four_intervals_are_valid(interval: str) -> None:
    assert texts(shared("TimeSlicing", slicing=TimeSlicingConfig(interval=interval))) == []


@pytest.mark.parametrize("interval", ["Invalid Interval", "", "default"])
def test_a_problem_with_the_interval_names_the_valid_ones(interval: str) -> None:
    assert texts(shared("TimeSlicing", slicing=TimeSlicingConfig(interval=interval))) == [
        f"unknown time-slice interval: {interval}, "
        "supported time-slice intervals: Default, Short, Medium, Long"
    ]


def test_mps_without_settings_gets_empty_ones() -> None:
    normalized = shared("MPS").normalized(ALL)
    assert normalized == shared("MPS", mps=MpsConfig())
    assert normalized.problems(ALL) == ()


@pytest.mark.parametrize(
    ("strategy", "gate"), [("TimeSlicing", "TimeSlicingSettings"), ("MPS", "MPSSupport")]
)
def test_a_strategy_with_a_disabled_gate_is_a_problem_and_gets_no_defaults(
    strategy: str, gate: str
) -> None:
    config = shared(strategy)
    assert config.normalized(NO_GATES) == config
    (problem,) = config.problems(NO_GATES)
    assert problem.reason is Reason.FEATURE_GATE_DISABLED
    assert problem.field == "sharing.strategy"
    assert problem.text == (
        f'"{strategy}" is selected as the GPU sharing strategy, but the "{gate}" '
        "feature gate is not enabled"
    )


@pytest.mark.parametrize("gates", [NO_GATES, ALL], ids=["off", "on"])
@pytest.mark.parametrize("strategy", ["TimeSlicing", "MPS"])
def test_a_strategy_that_the_release_lacks_is_a_problem_whatever_its_gate(
    strategy: str, gates: FeatureGates
) -> None:
    config = shared(strategy)
    release = gates.without({Feature.TIME_SLICING, Feature.MPS})
    assert config.normalized(release) == config
    (problem,) = config.problems(release)
    assert problem.reason is Reason.INVALID_CONFIG
    assert problem.field == "sharing.strategy"
    assert problem.text.startswith(f"{strategy} is not available in this version of the driver")
    assert "gate" not in problem.text


@pytest.mark.parametrize("strategy", ["", "mps", "Foo"])
def test_a_problem_with_the_strategy_names_the_valid_ones(strategy: str) -> None:
    assert texts(shared(strategy)) == [
        f"unknown GPU sharing strategy: {strategy}, "
        "supported GPU sharing strategies: TimeSlicing, MPS"
    ]


def test_settings_of_the_other_strategy_are_a_problem() -> None:
    assert texts(shared("TimeSlicing", mps=MpsConfig())) == [
        "cannot use MpsConfig with the 'TimeSlicing' strategy"
    ]
    assert texts(shared("MPS", slicing=TimeSlicingConfig(interval="Long"))) == [
        "cannot use TimeSlicingConfig with the 'MPS' strategy"
    ]


def test_the_time_slice_is_that_of_the_strategy() -> None:
    for config, expected in (
        (shared("TimeSlicing", slicing=TimeSlicingConfig(interval="Long")), "Long"),
        (shared("TimeSlicing"), "Default"),
        (shared("TimeSlicing", slicing=TimeSlicingConfig()), "Default"),
        (shared("MPS"), None),
        (GpuConfig(), None),
    ):
        assert config.normalized(ALL).time_slice == expected
