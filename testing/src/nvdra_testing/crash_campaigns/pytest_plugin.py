# SPDX-License-Identifier: Apache-2.0
"""The pytest options of the crash campaigns: which calls are struck, and where to report."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvdra_testing.crash_campaigns import report, selection
from nvdra_testing.crash_campaigns.golden_points import GoldenPoints
from nvdra_testing.crash_campaigns.outcomes import CampaignResult
from nvdra_testing.crash_campaigns.selection import Extent, Selection

MODULE = "/test_crash_campaign.py"
SEED = "SEED"
"""The environment variable that repeats the draw of an earlier run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash campaigns")
    group.addoption("--crash-report", help="write the outcome of every strike to this file")
    group.addoption("--crash-seed", type=int, help=f"draws the calls to strike; default ${SEED}")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed once; the workers of pytest-xdist get it with the options."""
    if config.option.crash_seed is None:
        config.option.crash_seed = int(os.environ.get(SEED) or random.randrange(1_000_000))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the seed of the campaigns that ran, whether they passed or not."""
    reports = (report for each in terminalreporter.stats.values() for report in each)
    has_run = any(MODULE in getattr(report, "nodeid", "") for report in reports)
    if has_run and not config.getoption("--soak"):
        seed = config.option.crash_seed
        terminalreporter.write_line(f"crash campaigns: some calls were drawn by {SEED}={seed}")


class Campaigns:
    """The crash campaigns of one run of pytest: what they strike, and what they have found."""

    def __init__(self, config: pytest.Config) -> None:
        self.results: list[CampaignResult] = []
        is_whole = config.getoption("--soak")
        self._seed = None if is_whole else int(config.option.crash_seed)

    def select(self, golden: GoldenPoints, extent: Extent = selection.MOST) -> Selection:
        """What the campaigns on one component strike."""
        kept = selection.kept_seeds(selection.KEPT_SEEDS.read_text())
        return Selection(golden, self._seed, kept, extent)

    def check(self, result: CampaignResult) -> None:
        """Keep a result for the report, and fail unless everything was hit and correct."""
        self.results.append(result)
        advice = "" if self._seed is None else f"repeat with {SEED}={self._seed}"
        assert result.selected, f"{result.operation}: no call was struck"
        problems = [*result.missed, *result.incorrect, *result.differences]
        assert not problems, f"{advice}\n{report.page([result])}"


@pytest.fixture(scope="session")
def campaigns(request: pytest.FixtureRequest) -> Iterator[Campaigns]:
    """The crash campaigns of this run."""
    campaigns = Campaigns(request.config)
    yield campaigns
    if path := request.config.getoption("--crash-report"):
        Path(path).write_text(report.page(campaigns.results))
