"""The crash campaign: killed before any call that changes something, the plugin goes on right.

The calls are recorded from an undisturbed run in the same test; a recorded one that no run died at
fails. `--crash-report=FILE` keeps the table of all outcomes.
"""

import pytest
from apiserver import ApiServer
from campaign import on_nodes, report
from campaign.operations import Operation, Prepare, Start, StartAgain, Unprepare
from campaign.outcomes import Campaign


@pytest.mark.protocol("P32")
@pytest.mark.protocol("P32")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", [Start, StartAgain, Prepare, Unprepare], ids=lambda kind: kind.name
)
async def test_a_kill_at_any_call_is_made_good_by_a_start_and_the_kubelets_retry(
    kind: type[Operation], server: ApiServer, campaigns: list[Campaign]
) -> None:
    found = await on_nodes.campaign(server, kind())
    campaigns.append(found)
    assert found.rows
    assert not found.missed + found.wrong, "\n" + report.page([found])
