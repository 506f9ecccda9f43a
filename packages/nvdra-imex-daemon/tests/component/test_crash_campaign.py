# SPDX-License-Identifier: Apache-2.0
"""The crash campaign: killed at any call that changes something, the daemon recovers.

Its container is started again; then its node has one entry with the same index, its files are
whole, and one nvidia-imex runs. A usual run strikes signals, locks, the hosts file and some calls
that `SEED=` draws, in three operations; `--soak` strikes every call of ten, and
`--crash-report=FILE` keeps the table of all outcomes.
"""

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import daemon_campaign, golden_points, selection
from nvdra_testing.crash_campaigns.daemon_operations import (
    AnnouncedJoin,
    AnnouncedStop,
    DaemonOperation,
    DeputyJoin,
    FirstStart,
    Join,
    PeerJoins,
    PeerLeaves,
    PeerMoves,
    RestartAfterKill,
    Stop,
)
from nvdra_testing.crash_campaigns.pytest_plugin import Campaigns

OPERATIONS = (AnnouncedJoin, PeerMoves, Stop)
SOAKED = (FirstStart, Join, DeputyJoin, RestartAfterKill, PeerJoins, PeerLeaves, AnnouncedStop)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "kind",
    [*OPERATIONS, *(pytest.param(each, marks=pytest.mark.soak) for each in SOAKED)],
    ids=lambda kind: str(kind.name),
)
async def test_after_a_kill_at_any_call_a_start_recovers(
    kind: type[DaemonOperation], server: ApiServer, campaigns: Campaigns
) -> None:
    await _run(kind(), server, campaigns)


async def _run(operation: DaemonOperation, server: ApiServer, campaigns: Campaigns) -> None:
    selected = campaigns.select(golden_points.load("imex_daemon"), selection.DAEMON)
    campaigns.check(await daemon_campaign.run_daemon_campaign(server, operation, selected))
