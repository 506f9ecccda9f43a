# SPDX-License-Identifier: Apache-2.0
"""A campaign is content only if it struck what it had to, and found everything right."""

from collections import Counter
from collections.abc import Sequence

import pytest
from nvdra_testing.crash_campaigns import golden_points, runner
from nvdra_testing.crash_campaigns.outcomes import (
    CampaignResult,
    PointResult,
    Recording,
    StrikeResult,
)
from nvdra_testing.crash_campaigns.points import CallPosition, KillPoint
from nvdra_testing.crash_campaigns.pytest_plugin import Campaigns
from nvdra_testing.crash_campaigns.selection import Selection

GOLDEN = golden_points.parse("# prepare\npwrite64 state.sqlite-wal 2\nmkdir cdi 1\nfsync cdi 1\n")
WHOLE = [
    KillPoint("pwrite64", "state.sqlite-wal", 1),
    KillPoint("pwrite64", "state.sqlite-wal", 2),
    KillPoint("mkdir", "cdi", 1),
    KillPoint("fsync", "cdi", 1),
]


async def run(
    recorded: Sequence[KillPoint], is_correct: bool = True, hits: bool = True
) -> CampaignResult:
    async def record(_: int) -> Recording:
        places = [(point, CallPosition("main", 1, 1, "")) for point in recorded]
        return Recording(places, Counter(), "/")

    async def strike(_: int, row: PointResult) -> StrikeResult:
        return StrikeResult(row.point if hits else None, "told", is_correct, "it was done")

    return await runner.run_campaign("prepare", [1, 2], record, strike, Selection(GOLDEN, seed=1))


@pytest.fixture
def campaigns(request: pytest.FixtureRequest) -> Campaigns:
    return Campaigns(request.config)


async def test_a_campaign_that_struck_everything_and_found_it_right_passes(
    campaigns: Campaigns,
) -> None:
    campaigns.check(await run(WHOLE))


@pytest.mark.parametrize(
    ("recorded", "is_correct", "hits", "says"),
    [
        (WHOLE[:1], True, True, "no longer made: mkdir cdi"),
        ([point for point in WHOLE if point.call != "fsync"], True, True, "no longer made: fsync"),
        ([*WHOLE, KillPoint("unlink", "cdi", 1)], True, True, "new: unlink cdi"),
        (WHOLE, False, True, "wrong outcomes"),
        (WHOLE, True, False, "ONLY 0 hit"),
        ([], True, True, "no call was struck"),
    ],
    ids=["one row", "no fsync", "another call", "a wrong outcome", "never hit", "nothing"],
)
async def test_a_campaign_that_shows_too_little_fails(
    campaigns: Campaigns,
    recorded: Sequence[KillPoint],
    is_correct: bool,
    hits: bool,
    says: str,
) -> None:
    with pytest.raises(AssertionError, match=says):
        campaigns.check(await run(recorded, is_correct, hits))
