# SPDX-License-Identifier: Apache-2.0
"""A campaign against the ComputeDomain controller, on API servers of its own."""

from collections.abc import Sequence

from nvdra_testing.crash_campaigns import controller_strikes, runner
from nvdra_testing.crash_campaigns.controller_operations import Operation
from nvdra_testing.crash_campaigns.controller_sandbox import ControllerSandbox
from nvdra_testing.crash_campaigns.controller_strikes import FailureMode
from nvdra_testing.crash_campaigns.outcomes import CampaignResult
from nvdra_testing.crash_campaigns.selection import Selection


async def run_controller_campaign(
    sandboxes: Sequence[ControllerSandbox],
    operation: Operation,
    failure: FailureMode,
    selection: Selection,
) -> CampaignResult:
    """Record the operation, and strike the controller at each selected write."""
    return await runner.run_campaign(
        f"{operation.name}, {failure.name}",
        sandboxes,
        lambda sandbox: controller_strikes.record_controller(sandbox, operation, failure),
        lambda sandbox, row: controller_strikes.strike_controller(sandbox, operation, row, failure),
        selection,
    )
