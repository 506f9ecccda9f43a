# SPDX-License-Identifier: Apache-2.0
"""How long outages last and idle components are watched in tests: pytest options."""

from dataclasses import dataclass

import pytest

OUTAGE_S, SOAK_OUTAGE_S = 5.0, 15.0
IDLE_S, SOAK_IDLE_S = 11.0, 30.0
"""The longest period of a plugin's own loops is 10 s: that of its look at the GPUs."""


@dataclass(frozen=True)
class Durations:
    """The durations of one run of pytest.

    Attributes:
        outage_s: How long an API server is away that comes back within a prepare.
        idle_s: How long an idle component is watched that must send no request.
    """

    outage_s: float
    idle_s: float


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durations")
    group.addoption("--outage-s", type=float, help=f"of an API server ({OUTAGE_S:.0f})")
    group.addoption("--idle-s", type=float, help=f"that a component is watched ({IDLE_S:.0f})")


@pytest.fixture(scope="session")
def durations(request: pytest.FixtureRequest) -> Durations:
    """The options, or their defaults for a usual run or a soak."""
    is_soak = bool(request.config.getoption("--soak"))
    outage, idle = request.config.getoption("--outage-s"), request.config.getoption("--idle-s")
    return Durations(
        outage_s=outage or (SOAK_OUTAGE_S if is_soak else OUTAGE_S),
        idle_s=idle or (SOAK_IDLE_S if is_soak else IDLE_S),
    )
