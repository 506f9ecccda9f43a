# SPDX-License-Identifier: Apache-2.0
"""What a daemon says on its pod is written once, and how long it waits for the controller."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import CliqueID
from nvdra_imex_daemon.membership.announcer import (
    AWAY_S,
    DEPUTIES_PER_S,
    DEPUTY_AFTER_S,
    Announcer,
)
from nvdra_imex_daemon.membership.member_store import Pod
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
POD = Pod("nvdra", "daemon-x7k2p", "uid")
PATCH = "PATCH /api/v1/namespaces/nvdra/pods/daemon-x7k2p"
MAX_NODES = 18
STARTED = 1_800_000_000
STARTING = Announcement("10.4.1.7", message="starting", preferred_index=3)
READY = Announcement("10.4.1.7", is_ready=True, preferred_index=3)


def run(main: Callable[[RecordedApi, Announcer], Awaitable[Any]], answers: list[Answer]) -> None:
    async def started() -> Any:
        api = RecordedApi(lambda _: answers.pop(0) if answers else (200, {}))
        return await main(api, Announcer(api, POD, CLIQUE, MAX_NODES, lambda: None, STARTED))

    virtual_time.run_with_virtual_time(started)


def later() -> float:
    return asyncio.get_running_loop().time() + 5


def test_only_what_is_new_is_written_and_the_index_alone_is_not() -> None:
    async def main(api: RecordedApi, announcer: Announcer) -> None:
        for said in (STARTING, STARTING, Announcement("10.4.1.7", message="starting"), READY):
            await announcer.announce(said, later())
        assert api.lines() == [PATCH, PATCH]
        body = api.requests[0].body["metadata"]
        assert body["labels"] == {"resource.nvidia.com/computeDomain.cliqueID": CLIQUE}
        value = body["annotations"].pop(names.DAEMON_ANNOTATION)
        assert body["annotations"] == {names.LINKS_ANNOTATION: None}
        assert json.loads(value) == {
            "ip": "10.4.1.7",
            "message": "starting",
            "index": 3,
            "started": STARTED,
        }

    run(main, [])


def test_the_controller_has_time_for_each_announcement() -> None:
    async def main(_: RecordedApi, announcer: Announcer) -> None:
        await announcer.announce(STARTING, later())
        first_s = announcer.patience_left_s
        assert DEPUTY_AFTER_S <= first_s <= DEPUTY_AFTER_S + MAX_NODES / DEPUTIES_PER_S
        await asyncio.sleep(10)
        await announcer.announce(STARTING, later())
        assert announcer.patience_left_s == pytest.approx(first_s - 10)
        await announcer.announce(READY, later())
        assert announcer.patience_left_s == pytest.approx(first_s)
        await asyncio.sleep(first_s)
        assert announcer.patience_left_s == 0.0

    run(main, [])


def test_a_controller_that_did_not_write_is_away_for_a_while() -> None:
    async def main(_: RecordedApi, announcer: Announcer) -> None:
        announcer.note_own_write()
        await announcer.announce(READY, later())
        assert announcer.is_controller_away
        assert announcer.patience_left_s == 0.0
        await asyncio.sleep(AWAY_S)
        assert not announcer.is_controller_away

    run(main, [])


def test_an_announcement_that_is_refused_is_tried_again_and_not_waited_for_longer() -> None:
    async def main(api: RecordedApi, announcer: Announcer) -> None:
        with pytest.raises(DriverError):
            await announcer.announce(STARTING, later())
        left_s = announcer.patience_left_s
        await asyncio.sleep(10)
        await announcer.announce(STARTING, later())
        assert announcer.patience_left_s == pytest.approx(left_s - 10)
        await announcer.announce(STARTING, later())
        assert api.lines() == [PATCH, PATCH]

    run(main, [recorded_api.status(422, "Invalid")])


def test_who_meets_another_writer_takes_another_turn_each_time_in_twice_the_time() -> None:
    async def main(api: RecordedApi, announcer: Announcer) -> None:
        spread_s = MAX_NODES / DEPUTIES_PER_S
        announcer.note_own_write()
        assert announcer.patience_left_s == 0.0
        longest = []
        for _ in range(200):
            announcer.note_own_write()  # the next conflict is a first one again
            announcer.take_another_turn()
            first_s = announcer.patience_left_s
            announcer.take_another_turn()
            assert first_s <= spread_s
            longest.append(announcer.patience_left_s)
        assert spread_s < max(longest) <= 2 * spread_s
        await asyncio.sleep(2 * spread_s)
        assert announcer.patience_left_s == 0.0
        assert not api.requests

    run(main, [])
