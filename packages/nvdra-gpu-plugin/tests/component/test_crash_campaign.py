"""The crash campaign: killed before any call that changes something, the plugin recovers.

The calls are recorded from an undisturbed run in the same test and compared with the golden list of
`nvdra_testing.crash_campaigns.golden_points`. A selected call that no run died at fails the test.
`SEED=` repeats a selection, `--soak` selects every call, and `--crash-report=FILE` keeps
the table of all outcomes.
"""

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import golden_points, plugin_campaign
from nvdra_testing.crash_campaigns.plugin_operations import (
    FirstStart,
    Operation,
    Prepare,
    StartAfterKill,
    Unprepare,
)
from nvdra_testing.crash_campaigns.pytest_plugin import Campaigns


@pytest.mark.protocol("P32")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", [FirstStart, StartAfterKill, Prepare, Unprepare], ids=lambda kind: kind.name
)
async def test_after_a_kill_at_any_call_a_start_and_the_kubelets_retry_recover(
    kind: type[Operation], server: ApiServer, campaigns: Campaigns
) -> None:
    selection = campaigns.select(golden_points.load("gpu_plugin"))
    campaigns.check(await plugin_campaign.run_plugin_campaign(server, kind(), selection))
