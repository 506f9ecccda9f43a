# SPDX-License-Identifier: Apache-2.0
"""Charts that clusters have today: of the releases, and of states that were never released."""

from pathlib import Path
from typing import NamedTuple

from nvdra_testing import releases
from nvdra_testing.charts import COMPONENTS, UMBRELLA


class FormerState(NamedTuple):
    """A commit whose charts may be installed.

    Attributes:
        name: For instance `0.1.0`.
        commit: The commit.
        charts: The charts that it has.
    """

    name: str
    commit: str
    charts: frozenset[str]


def write(state: FormerState, folder: Path) -> Path:
    """Write the charts of a state below `folder`: the directory `charts`."""
    return releases.charts(state.commit, folder)


def _released() -> list[FormerState]:
    """The releases of the umbrella chart, each with the components whose version it names."""
    rows = releases.releases()
    found = []
    for umbrella in (row for row in rows if row.package == UMBRELLA):
        there = {row.package for row in rows[: rows.index(umbrella)]}
        parts = {UMBRELLA, *(name for name in COMPONENTS if name in there)}
        found.append(FormerState(umbrella.version, umbrella.commit, frozenset(parts)))
    return found


STATES = (
    *_released(),
    # It calls itself 0.1.0 as well. Unlike the release it has the webhook.
    FormerState(
        "9d5bf10f",
        "9d5bf10f53e50598c5d1d96b1c8d24bc69c42710",
        frozenset((UMBRELLA, *COMPONENTS)),
    ),
)
"""The oldest first."""
