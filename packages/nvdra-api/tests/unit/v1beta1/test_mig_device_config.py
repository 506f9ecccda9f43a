# SPDX-License-Identifier: Apache-2.0
"""MigDeviceConfig: implied defaults, and the problems of its sharing settings."""

import pytest
from nvdra_api.errors import Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1 import MigDeviceConfig
from nvdra_api.v1beta1.mig_device_config import MigDeviceSharing
from nvdra_api.v1beta1.sharing import MpsConfig

NO_GATES = FeatureGates()
ALL = FeatureGates.parse("TimeSlicingSettings=true,MPSSupport=true")


def shared(strategy: str, mps: MpsConfig | None = None) -> MigDeviceConfig:
    return MigDeviceConfig(sharing=MigDeviceSharing(strategy=strategy, mps_config=mps))


def test_a_config_without_sharing_is_valid_whatever_the_gates_are() -> None:
    assert MigDeviceConfig().normalized(NO_GATES) == MigDeviceConfig()
    assert MigDeviceConfig().problems(NO_GATES) == ()


def test_mps_without_settings_gets_empty_ones() -> None:
    normalized = shared("MPS").normalized(ALL)
    assert normalized == shared("MPS", MpsConfig())
    assert normalized.problems(ALL) == ()


def test_time_slicing_has_no_settings() -> None:
    assert shared("TimeSlicing").normalized(ALL) == shared("TimeSlicing")
    assert shared("TimeSlicing").problems(ALL) == ()


@pytest.mark.parametrize("strategy", ["TimeSlicing", "MPS"])
def test_a_strategy_with_a_disabled_gate_is_a_problem(strategy: str) -> None:
    assert shared(strategy).normalized(NO_GATES) == shared(strategy)
    (problem,) = shared(strategy).problems(NO_GATES)
    assert (problem.reason, problem.field) == (Reason.FEATURE_GATE_DISABLED, "sharing.strategy")


def test_settings_of_mps_are_validated() -> None:
    (problem,) = shared("MPS", MpsConfig(default_active_thread_percentage=101)).problems(ALL)
    assert problem.field == "sharing.mpsConfig.defaultActiveThreadPercentage"
