# SPDX-License-Identifier: Apache-2.0
"""Every reason that the plugin's code can raise is provoked by a test."""

import pytest
from nvdra_api import names
from nvdra_api.errors import Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1 import CONFIGS_BY_DRIVER, DeviceConfig
from nvdra_testing.failures import domain_provocations, raised_reasons

DRIVER = raised_reasons.modules("nvdra_cd_plugin")
NEVER_TOLD = {
    # Configs of GPUs raise it; those of this driver need no gate, as a test below shows.
    Reason.FEATURE_GATE_DISABLED,
    # The engine names them, which knows the changes of all drivers; no channel is in MIG mode, and
    # none goes to vfio.
    Reason.MIG_MODE_REQUIRES_RESET,
    Reason.VFIO_BIND_FAILED,
}


def test_every_reason_that_the_plugin_can_raise_is_provoked() -> None:
    assert len(DRIVER) > 60
    raised = {name for tree in DRIVER.values() for name in raised_reasons.reasons_named(tree)}
    provoked = {reason.name for reason in domain_provocations.PROVOCATIONS}
    never = {reason.name for reason in NEVER_TOLD}
    assert raised - provoked == never, "add it to nvdra_testing.failures.domain_provocations"
    assert provoked - raised == set(), "nothing in the plugin raises this any more"


def test_a_reason_is_always_written_out_so_that_the_list_is_whole() -> None:
    assert raised_reasons.reasons_computed(DRIVER) == []


@pytest.mark.parametrize("kind", CONFIGS_BY_DRIVER[names.COMPUTE_DOMAIN_DRIVER])
def test_no_config_of_this_driver_needs_a_gate(kind: type[DeviceConfig]) -> None:
    reasons = {problem.reason for problem in kind().problems(FeatureGates())}
    assert reasons == {Reason.INVALID_CONFIG}
