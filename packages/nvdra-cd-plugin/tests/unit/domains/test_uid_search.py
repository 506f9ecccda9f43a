# SPDX-License-Identifier: Apache-2.0
"""One list answers for all UIDs that wait when it begins."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nvdra_api.errors import DriverError, RetryableError
from nvdra_api.ids import DomainUID
from nvdra_cd_plugin.domains.uid_search import DomainName, UidSearch
from nvdra_runtime.kube import connection
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

ALL = "/domains"
UIDS = [DomainUID(f"uid-{number}") for number in range(50)]
DEADLINE = 100.0


def item(uid: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "namespace": "team", "name": f"name-of-{uid}"}}


def served(request: Request) -> Answer:
    if "continue" not in request.params:
        return 200, {"metadata": {"continue": "more"}, "items": [item("other"), item(UIDS[0])]}
    return 200, {"metadata": {}, "items": [item(UIDS[1])]}


def run(
    main: Callable[[UidSearch, RecordedApi], Awaitable[None]],
    answer: Callable[[Request], Answer] = served,
) -> None:
    async def started() -> None:
        api = RecordedApi(answer)
        await main(UidSearch(api), api)

    virtual_time.run_with_virtual_time(started)


async def find_all(search: UidSearch, *uids: DomainUID) -> list[DomainName | DriverError | None]:
    async def find(uid: DomainUID) -> DomainName | DriverError | None:
        try:
            return await search.find(ALL, uid, DEADLINE)
        except DriverError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(find(uid)) for uid in uids]
    return [task.result() for task in tasks]


def test_uids_that_wait_together_take_two_lists_of_metadata() -> None:
    async def main(search: UidSearch, api: RecordedApi) -> None:
        found = await find_all(search, *UIDS)
        assert found[:2] == [("team", "name-of-uid-0"), ("team", "name-of-uid-1")]
        assert found[2:] == [None] * 48
        starts = [each for each in api.requests if "continue" not in each.params]
        assert len(starts) <= 2, "of the first one, and of those that came while it was read"
        assert {each.accept for each in api.requests} == {connection.METADATA_LIST}

    run(main)


def test_who_comes_later_does_not_get_an_earlier_answer() -> None:
    served_uids: list[str] = []

    def answer(_: Request) -> Answer:
        return 200, {"metadata": {}, "items": [item(uid) for uid in served_uids]}

    async def main(search: UidSearch, api: RecordedApi) -> None:
        assert await search.find(ALL, UIDS[0], DEADLINE) is None
        served_uids.append(UIDS[0])
        assert await search.find(ALL, UIDS[0], DEADLINE) == ("team", "name-of-uid-0")

    run(main, answer)


def test_a_search_ends_on_the_page_that_has_the_domain() -> None:
    async def main(search: UidSearch, api: RecordedApi) -> None:
        assert await search.find(ALL, UIDS[0], DEADLINE)
        assert len(api.requests) == 1

    run(main)


def test_a_list_that_fails_fails_for_the_one_that_asked_and_the_next_asks_again() -> None:
    answers = iter([recorded_api.status(500, "Internal")])

    def answer(request: Request) -> Answer:
        return next(answers, None) or served(request)

    async def main(search: UidSearch, api: RecordedApi) -> None:
        first, second = await find_all(search, UIDS[0], UIDS[0])
        assert isinstance(first, RetryableError)
        assert second == ("team", "name-of-uid-0")

    run(main, answer)
