# SPDX-License-Identifier: Apache-2.0
"""The clique of the node, compared with the one that the daemon has joined."""

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import CliqueID
from nvdra_imex_daemon.membership.node_clique_monitor import NodeCliqueMonitor

OWN, OTHER = CliqueID("c.2"), CliqueID("c.5")


class Node:
    """What the plugin says, and what was reported of it."""

    def __init__(self) -> None:
        self.clique: CliqueID | None = OWN
        self.reports: list[CliqueID | None] = []
        self.is_api_away = False
        self.monitor = NodeCliqueMonitor(OWN, self._read, self._report)

    async def _read(self) -> CliqueID | None:
        return self.clique

    async def _report(self, clique: CliqueID | None) -> None:
        if self.is_api_away:
            raise RetryableError(Reason.API_UNAVAILABLE, "away", "")
        self.reports.append(clique)

    async def look(self, *cliques: CliqueID | None) -> list[CliqueID | None]:
        for self.clique in cliques:
            await self.monitor.look()
        return self.reports


async def test_another_clique_is_reported_once_and_until_the_node_is_back() -> None:
    assert await Node().look(OWN, OTHER, OTHER, OWN) == [OTHER, None]


async def test_a_node_without_fabric_has_left_the_clique() -> None:
    assert await Node().look(CliqueID("")) == [""]


async def test_a_plugin_that_does_not_say_it_changes_nothing() -> None:
    assert await Node().look(None, None) == []


async def test_a_report_that_fails_is_repeated() -> None:
    node = Node()
    node.is_api_away = True
    await node.look(OTHER)
    node.is_api_away = False
    assert await node.look(OTHER) == [OTHER]
