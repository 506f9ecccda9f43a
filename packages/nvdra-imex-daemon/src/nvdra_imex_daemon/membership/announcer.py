# SPDX-License-Identifier: Apache-2.0
"""Says on our own pod what our entry in the clique is to contain, for the controller to write.

The same request sets the label with the pod's clique, and removes what an earlier container of the
pod has said of its connections.
Source: docs/decisions/imex-daemon.md, "Who writes the clique?"; docs/reference/compute-domain.md,
"Labels and finalizers".
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from nvdra_api import names
from nvdra_api.ids import CliqueID
from nvdra_runtime.computedomain import announcements
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.kube.client import Client
from nvdra_runtime.telemetry import logs

from nvdra_imex_daemon.membership.member_store import Pod

LOG = logs.logger(__name__)

DEPUTY_AFTER_S: Final = 15.0
"""How long a daemon waits for the controller before it writes its entry itself. Another replica of
the controller takes over within 15 to 20 s."""
DEPUTIES_PER_S: Final = 3.0
"""How many daemons of one clique then write in a second, each at a random time, its turn. A read
and the write after it take some hundredths of a second, so that few meet another one's."""
AWAY_S: Final = 60.0
"""How long a daemon that had to write its entry takes the controller for away."""


class Announcer:
    """The announcement of one daemon."""

    def __init__(
        self,
        api: Client,
        pod: Pod,
        clique: CliqueID,
        max_nodes: int,
        links_annotation: Callable[[], str | None],
        started: int,
    ) -> None:
        """Create it without any request.

        Args:
            api: Client of the API server.
            pod: Our pod.
            clique: The clique of our node.
            max_nodes: How many nodes the clique may have.
            links_annotation: What the pod's annotation about connections is to say at that time.
            started: When this process started, in seconds since 1970.
        """
        self._api = api
        self._links_annotation = links_annotation
        self._started = started
        self._path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        self._clique = clique
        self._spread_s = max_nodes / DEPUTIES_PER_S
        self._next_spread_s = self._spread_s
        self._patience_s = DEPUTY_AFTER_S + _random_share(self._spread_s)
        self._turn_at = 0.0
        self._wanted: Announcement | None = None
        self._wanted_since = 0.0
        self._is_written = False
        self._away_until = 0.0

    @property
    def is_controller_away(self) -> bool:
        """Whether we had to write our entry ourselves a short while ago."""
        return _now() < self._away_until

    @property
    def patience_left_s(self) -> float:
        """How long to wait for the controller before we write our entry ourselves."""
        turn_at = self._turn_at
        if self._wanted is not None and not self.is_controller_away:
            turn_at = max(turn_at, self._wanted_since + self._patience_s)
        return max(0.0, turn_at - _now())

    async def announce(self, announcement: Announcement, deadline: float) -> None:
        """Write the announcement if it says something new.

        The index alone is nothing new: it is only of use if the clique is lost.

        Raises:
            DriverError: The API server did not accept it.
        """
        announcement = replace(announcement, started=self._started)
        wanted = self._wanted
        if wanted is None or announcement != replace(
            wanted, preferred_index=announcement.preferred_index
        ):
            self._wanted, self._wanted_since = announcement, _now()
            self._is_written = False
        if self._is_written:
            return
        change = {
            "metadata": {
                "labels": {names.CLIQUE_LABEL: self._clique},
                "annotations": {
                    names.DAEMON_ANNOTATION: announcements.annotation(announcement),
                    names.LINKS_ANNOTATION: self._links_annotation(),
                },
            }
        }
        await self._api.patch(self._path, change, deadline)
        self._is_written = True
        LOG.v(2, "Announced on this pod", ready=announcement.is_ready, left=announcement.has_left)

    def take_another_turn(self) -> None:
        """Wait for another turn, because another daemon has just written the clique.

        Each time the turns are spread over twice the time, for an API server that is so slow that
        many meet.
        """
        self._turn_at = _now() + _random_share(self._next_spread_s)
        self._next_spread_s *= 2

    def note_own_write(self) -> None:
        """Note that we had to write our entry ourselves."""
        if not self.is_controller_away:
            LOG.warning("The controller does not write the clique: this daemon writes its entry")
        self._away_until = _now() + AWAY_S
        self._next_spread_s = self._spread_s


def _random_share(duration_s: float) -> float:
    return random.random() * duration_s  # noqa: S311 - spreads load


def _now() -> float:
    return asyncio.get_running_loop().time()
