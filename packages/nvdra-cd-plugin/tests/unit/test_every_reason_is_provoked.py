"""The list of reasons is taken from the code: each that the plugin can raise is brought about."""

import domain_provoking
import pytest
import raising
from nvdra_api.types import names
from nvdra_api.types.configs import KINDS, DriverConfig
from nvdra_api.types.errors import Reason
from nvdra_api.types.gates import Gates

DRIVER = raising.modules("nvdra_cd_plugin")
NEVER_TOLD = {
    # What a failed NVML call is called in a trace; no claim is refused with it.
    Reason.DEVICE_UNHEALTHY,
    # Configs of GPUs raise it; those of this driver need no gate, as a test below shows.
    Reason.FEATURE_GATE_DISABLED,
}


def test_every_reason_that_the_plugin_can_raise_is_brought_about_by_a_test() -> None:
    assert len(DRIVER) > 60
    raised = {name for tree in DRIVER.values() for name in raising.named(tree)}
    provoked = {reason.name for reason in domain_provoking.PROVOCATIONS}
    never = {reason.name for reason in NEVER_TOLD}
    assert raised - provoked == never, "add a provocation to e2e/harness/domain_provoking.py"
    assert provoked - raised == set(), "nothing in the plugin raises this any more"


def test_a_reason_is_always_written_out_so_that_the_list_is_whole() -> None:
    assert raising.computed(DRIVER) == []


@pytest.mark.parametrize("kind", KINDS[names.COMPUTE_DOMAIN_DRIVER])
def test_no_config_of_this_driver_needs_a_gate(kind: type[DriverConfig]) -> None:
    reasons = {problem.reason for problem in kind().problems(Gates())}
    assert reasons == {Reason.INVALID_CONFIG}
