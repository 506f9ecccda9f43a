# SPDX-License-Identifier: Apache-2.0
"""Every reason that the GPU plugin can raise is provoked by a test and explained on a page."""

import re

import pytest
from nvdra_api import names
from nvdra_api.errors import Reason
from nvdra_api.gates import KNOWN_FEATURES, UNAVAILABLE_FEATURES, Feature, FeatureGates
from nvdra_api.v1beta1 import (
    CONFIGS_BY_DRIVER,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
)
from nvdra_api.v1beta1.gpu_config import GpuSharing
from nvdra_api.v1beta1.mig_device_config import MigDeviceSharing
from nvdra_api.v1beta1.sharing import STRATEGIES
from nvdra_runtime.telemetry.reason_explanations import EXPLANATIONS
from nvdra_testing.failures import gpu_provocations, raised_reasons

from scripts import document_reasons

DRIVER = raised_reasons.modules("nvdra_gpu_plugin")
CONFIGS = [
    *(GpuConfig(sharing=GpuSharing(strategy=strategy)) for strategy in STRATEGIES),
    *(MigDeviceConfig(sharing=MigDeviceSharing(strategy=strategy)) for strategy in STRATEGIES),
    VfioDeviceConfig(),
]
"""A config for each feature that configs can ask for."""


def test_every_reason_that_the_plugin_can_raise_is_provoked_by_a_test() -> None:
    assert len(DRIVER) > 60
    raised = {name for tree in DRIVER.values() for name in raised_reasons.reasons_named(tree)}
    tables = (gpu_provocations.PROVOCATIONS, gpu_provocations.VFIO_PROVOCATIONS)
    provoked = {reason.name for table in tables for reason in table}
    missing = raised - provoked
    assert missing == set(), "add a provocation to nvdra_testing.failures.gpu_provocations"
    assert provoked - raised == set(), "nothing in the plugin raises this any more"


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_no_config_is_refused_for_a_gate_that_has_no_effect(config: DeviceConfig) -> None:
    assert {type(each) for each in CONFIGS} == set(CONFIGS_BY_DRIVER[names.GPU_DRIVER])
    gates = FeatureGates().without(UNAVAILABLE_FEATURES)
    sharing = config.sharing if isinstance(config, GpuConfig | MigDeviceConfig) else None
    gate = STRATEGIES[sharing.strategy] if sharing is not None else Feature.PASSTHROUGH
    has_gate = gate not in UNAVAILABLE_FEATURES
    expected = Reason.FEATURE_GATE_DISABLED if has_gate else Reason.INVALID_CONFIG
    assert {problem.reason for problem in config.problems(gates)} == {expected}


def test_every_gate_that_is_off_by_default_has_an_effect_or_is_warned_of() -> None:
    off = {feature for feature, spec in KNOWN_FEATURES.items() if not spec.default}
    of_domains = {Feature.HOST_MANAGED_IMEX}
    works = {
        Feature.DEVICE_METADATA,
        Feature.LIST_ATTRIBUTES,
        Feature.HEALTH_CHECK,
        Feature.DYNAMIC_MIG,
        Feature.TIME_SLICING,
        Feature.CONSUMABLE_SHARES,
        Feature.MPS,
        Feature.PASSTHROUGH,
    }
    assert off - of_domains - UNAVAILABLE_FEATURES == works


def test_no_reason_is_computed_so_that_the_list_is_complete() -> None:
    assert raised_reasons.reasons_computed(DRIVER) == []


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)
    for explanation in EXPLANATIONS.values():
        assert explanation.check
        assert explanation.remedy


def test_the_placeholders_of_commands_are_explained() -> None:
    commands = [
        command.partition("   #")[0] for each in EXPLANATIONS.values() for command in each.check
    ]
    columns = {"NS", "NAME", "UID"}
    left = {word for each in commands for word in re.findall(r"\b[A-Z][A-Z_]+\b", each)} - columns
    assert left == set(document_reasons.PLACEHOLDERS)


def test_the_page_agrees_with_the_code() -> None:
    stale = "docs/reasons.md is stale: python scripts/document_reasons.py"
    assert document_reasons.PAGE.read_text() == document_reasons.page(), stale
