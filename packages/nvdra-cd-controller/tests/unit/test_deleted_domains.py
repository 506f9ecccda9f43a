# SPDX-License-Identifier: Apache-2.0
"""One list of all domains answers for all UIDs, and lists are rare."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nvdra_api.errors import RetryableError
from nvdra_api.ids import DomainUID
from nvdra_cd_controller.deleted_domains import DeletedDomains
from nvdra_runtime.kube import connection
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

DOMAINS = "GET /apis/resource.nvidia.com/v1beta1/computedomains"
MADE_UP = [DomainUID(f"made-up-{number}") for number in range(3_000)]
REAL = DomainUID("real")


def served(request: Request) -> Answer:
    """Two pages, with the only domain on the second one."""
    if "continue" not in request.params:
        return 200, {"metadata": {"continue": "more"}, "items": [{"metadata": {"uid": "other"}}]}
    return 200, {"metadata": {}, "items": [{"metadata": {"uid": REAL}}]}


def run(
    main: Callable[[DeletedDomains], Awaitable[None]],
    answer: Callable[[Request], Answer] = served,
) -> RecordedApi:
    async def started() -> RecordedApi:
        api = RecordedApi(answer)
        await main(DeletedDomains(api, lambda: {*MADE_UP, REAL}))
        return api

    api: Any = virtual_time.run_with_virtual_time(started)
    assert isinstance(api, RecordedApi)
    return api


def test_one_list_answers_for_all_uids_that_are_known() -> None:
    async def main(deleted: DeletedDomains) -> None:
        for uid in MADE_UP:
            assert await deleted.contains(uid)

    api = run(main)
    assert api.lines() == [DOMAINS, DOMAINS]
    assert {each.accept for each in api.requests} == {connection.METADATA_LIST}


def test_who_asks_while_a_list_is_read_asks_for_no_other() -> None:
    async def main(deleted: DeletedDomains) -> None:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(deleted.contains(uid)) for uid in MADE_UP]
        assert sum(each.result() for each in answers) == 1
        assert all([await deleted.contains(uid) for uid in MADE_UP])

    assert run(main).lines() == [DOMAINS, DOMAINS]


def test_a_domain_that_exists_is_not_deleted_and_asked_for_once_a_second() -> None:
    async def main(deleted: DeletedDomains) -> None:
        for _ in range(40):
            assert not await deleted.contains(REAL)
            await asyncio.sleep(0.25)

    assert len(run(main).lines()) == 2 * 10


def test_a_uid_that_became_known_after_the_list_is_asked_for_in_the_next_one() -> None:
    late = DomainUID("late")

    async def main(deleted: DeletedDomains) -> None:
        assert await deleted.contains(MADE_UP[0])
        assert not await deleted.contains(late)
        await asyncio.sleep(1)
        assert await deleted.contains(late)

    assert len(run(main).lines()) == 4


def test_a_list_that_fails_answers_nothing() -> None:
    async def main(deleted: DeletedDomains) -> None:
        with pytest.raises(RetryableError):
            await deleted.contains(MADE_UP[0])
        assert not await deleted.contains(MADE_UP[0])
        await asyncio.sleep(1)
        with pytest.raises(RetryableError):
            await deleted.contains(MADE_UP[0])

    def failing(request: Request) -> Answer:
        if "continue" in request.params:
            return recorded_api.status(410, "Expired")
        return served(request)

    run(main, failing)
