"""The pytest option `--crash-report=FILE`: what the crash campaigns of a run have found."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import report
from campaign.outcomes import Campaign


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-report", help="file for what came of every kill of the campaigns")


@pytest.fixture(scope="session")
def campaigns(request: pytest.FixtureRequest) -> Iterator[list[Campaign]]:
    """What the crash campaigns found, for the report."""
    found: list[Campaign] = []
    yield found
    if path := request.config.getoption("--crash-report"):
        Path(path).write_text(report.page(found))
