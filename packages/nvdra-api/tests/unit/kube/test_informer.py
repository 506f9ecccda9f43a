# SPDX-License-Identifier: Apache-2.0
"""What an informer asks for after each end of a watch, and what it tells meanwhile."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.informer import PROMPT_BACKOFF, Informer, fixed_path
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

THINGS = "/things"
GET, WATCH = f"GET {THINGS}", f"WATCH {THINGS}"
OPEN: Answer = (200, {})
EXPIRED = recorded_api.status(410, "Expired")


def obj(name: str, version: int) -> JsonObject:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def listing(version: int, *objects: JsonObject) -> Answer:
    return 200, {"metadata": {"resourceVersion": str(version)}, "items": list(objects)}


def ended(*events: tuple[str, JsonObject]) -> Answer:
    return 200, {"events": [{"type": kind, "object": each} for kind, each in events]}


def script(*answers: tuple[str, Answer]) -> Callable[[Request], Answer]:
    """Answers for exactly these requests, in this order."""
    left: Iterator[tuple[str, Answer]] = iter(answers)

    def answer(request: Request) -> Answer:
        version = request.params.get("resourceVersion", "")
        asked = f"{request.line} {version}".strip()
        expected, found = next(left)
        assert asked == expected
        return found

    return answer


def versions(api: RecordedApi) -> Sequence[str]:
    return [each.params["resourceVersion"] for each in api.requests if each.line == WATCH]


def watched(
    answers: Callable[[Request], Answer],
    main: Callable[[RecordedApi, Informer], Any],
    *,
    run: Callable[[Callable[[], Any]], Any] = virtual_time.run_with_virtual_time,
    selector: str = "labelSelector",
    **options: Any,
) -> Any:
    async def find_path(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return THINGS

    async def started() -> Any:
        api = RecordedApi(answers)
        informer = Informer(api, find_path, {selector: "a"}, lambda _: None, **options)
        async with informer.running():
            return await main(api, informer)

    return run(started)


async def names_are(informer: Informer, *names: str) -> None:
    seen = 0
    async with asyncio.timeout(60):
        while set(informer.snapshot()) != set(names):
            seen = await informer.wait_for_change(seen)


@pytest.mark.parametrize(
    "expired", [EXPIRED, ended(("ERROR", EXPIRED[1]))], ids=["refused", "in the stream"]
)
def test_a_version_that_the_server_no_longer_keeps_is_listed_again(expired: Answer) -> None:
    answers = script(
        (GET, listing(5, obj("a", 1))),
        (f"{WATCH} 5", expired),
        (GET, listing(8, obj("b", 7))),
        (f"{WATCH} 8", OPEN),
    )

    async def main(api: RecordedApi, informer: Informer) -> None:
        await names_are(informer, "b")
        await asyncio.sleep(60)  # it watches, and asks for nothing else
        assert api.lines() == [GET, WATCH, GET, WATCH]
        assert informer.error == ""

    watched(answers, main)


def test_a_watch_goes_on_where_the_last_one_ended_without_a_list() -> None:
    answers = script(
        (GET, listing(5, obj("a", 1))),
        (f"{WATCH} 5", ended(("ADDED", obj("b", 6)), ("BOOKMARK", obj("", 9)))),
        (f"{WATCH} 9", ended(("DELETED", obj("a", 12)))),
        (f"{WATCH} 12", OPEN),
    )

    async def main(api: RecordedApi, informer: Informer) -> None:
        await names_are(informer, "b")
        await asyncio.sleep(60)
        assert versions(api) == ["5", "9", "12"]
        times = [each.time for each in api.requests if each.line == WATCH]
        assert [later - earlier for earlier, later in itertools.pairwise(times)] == [1, 1]
        watch = api.requests[1].params
        assert {**watch, "timeoutSeconds": ""} == {
            "labelSelector": "a",
            "resourceVersion": "5",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "",
        }

    watched(answers, main)


def test_a_list_of_many_pages_takes_as_long_as_it_needs() -> None:
    """Only a page has a time limit: what users write cannot keep a list from its end."""
    pages = 8

    def answer(request: Request) -> Answer:
        if request.line == WATCH:
            return OPEN
        number = int(request.params.get("continue", "0"))
        more = {"continue": str(number + 1)} if number + 1 < pages else {}
        metadata = {"resourceVersion": "9", **more}
        return 200, {"metadata": metadata, "items": [obj(f"a{number}", 1)]}

    async def main(api: RecordedApi, informer: Informer) -> float:
        api.delay_s = 20.0
        await informer.wait_for_sync()
        assert len(informer.snapshot()) == pages
        return asyncio.get_running_loop().time()

    assert watched(answer, main) >= 20 * pages


def test_a_watch_that_fails_before_any_event_is_told_and_the_collection_listed_later() -> None:
    answers = script(
        (GET, listing(5, obj("a", 1))),
        (f"{WATCH} 5", recorded_api.status(500, "Internal")),
        (GET, listing(6, obj("c", 6))),
        (f"{WATCH} 6", OPEN),
    )

    async def main(api: RecordedApi, informer: Informer) -> None:
        seen = await informer.wait_for_change(0)
        await informer.wait_for_change(seen)
        assert informer.error.startswith(f"ApiUnavailable: {WATCH}: 500")
        assert set(informer.snapshot()) == {"a"}, "what was known stays"
        await names_are(informer, "c")
        assert informer.error == ""
        assert api.requests[2].time - api.requests[1].time >= 0.4

    watched(answers, main)


def page(token: str, *objects: JsonObject) -> Answer:
    return 200, {"metadata": {"resourceVersion": "5", "continue": token}, "items": list(objects)}


def test_a_collection_that_users_fill_is_listed_in_pages() -> None:
    answers = script(
        (GET, page("two", obj("a", 1), obj("b", 2))),
        (GET, page("three", obj("c", 3))),
        (GET, EXPIRED),  # the server has forgotten the rest; it begins anew
        (GET, page("four", obj("b", 2))),
        (GET, page("", obj("c", 3))),
        (f"{WATCH} 5", OPEN),
    )

    async def main(api: RecordedApi, informer: Informer) -> None:
        await names_are(informer, "b", "c")
        await asyncio.sleep(60)
        asked = [each.params for each in api.requests if each.line == GET]
        assert [each.get("continue") for each in asked] == [None, "two", "three", None, "four"]
        assert [int(each["limit"]) for each in asked] == [16, 32, 64, 16, 32]
        assert {each["labelSelector"] for each in asked} == {"a"}

    watched(answers, main)


@pytest.mark.parametrize("in_pages", [False, True])
def test_objects_that_are_too_long_together_are_listed_in_smaller_pages(*, in_pages: bool) -> None:
    """The server has 45 objects of 1.5 MB."""
    long = "x" * 1_500_000

    def answer(request: Request) -> Answer:
        if request.line != GET:
            return OPEN
        first = int(request.params.get("continue", "0"))
        after = min(45, first + int(request.params.get("limit", "1000")))
        found = [{**obj(f"o{each}", each), "long": long} for each in range(first, after)]
        return page(str(after) if after < 45 else "", *found)

    async def main(api: RecordedApi, informer: Informer) -> None:
        await names_are(informer, *(f"o{each}" for each in range(45)))
        limits = [int(each.params.get("limit", "0")) for each in api.requests if each.line == GET]
        assert limits == [*([] if in_pages else [0]), 16, 4, *[1] * 41]
        assert all("long" not in each for each in informer.snapshot().values())

    def run(started: Callable[[], Any]) -> Any:
        return asyncio.run(started())  # long answers are parsed in a thread, which takes real time

    watched(
        answer,
        main,
        run=run,
        selector="labelSelector" if in_pages else "fieldSelector",
        transform=lambda each: {"metadata": each["metadata"]},
    )


def test_after_a_pause_all_that_has_changed_is_read_once() -> None:
    made: list[Informer] = []
    pauses = iter((0.0, 5.0, 3.0))  # after the first list, after the event, after the second list
    answers = script(
        (GET, listing(5, obj("a", 1))),
        (f"{WATCH} 5", OPEN),
        (GET, listing(9, obj("b", 6), obj("c", 9))),
        (GET, listing(9, obj("b", 6), obj("c", 9))),  # nothing new: it watches again
        (f"{WATCH} 9", OPEN),
    )

    async def main(api: RecordedApi, informer: Informer) -> None:
        made.append(informer)
        await names_are(informer, "a")
        assert not informer.is_paused
        api.push(THINGS, "ADDED", obj("b", 6))
        await names_are(informer, "a", "b")
        assert informer.is_paused
        await names_are(informer, "b", "c")
        await asyncio.sleep(60)
        assert not informer.is_paused
        _, watched_at, second, third, again = (each.time for each in api.requests)
        assert [second - watched_at, third - second, again - third] == [5, 3, 0]

    watched(answers, main, on_change=lambda _: made[0].pause(next(pauses)))


def test_an_event_reaches_those_who_wait() -> None:
    async def main(api: RecordedApi, informer: Informer) -> None:
        await names_are(informer, "a")
        api.push(THINGS, "ADDED", obj("b", 6))
        await names_are(informer, "a", "b")
        api.push(THINGS, "DELETED", obj("a", 7))
        await names_are(informer, "b")
        assert api.lines() == [GET, WATCH]

    watched(script((GET, listing(5, obj("a", 1))), (f"{WATCH} 5", OPEN)), main)


def test_changed_keys_and_restarts_of_the_watch_are_told_once() -> None:
    told: list[frozenset[str]] = []
    restarts: list[str] = []
    answers = script(
        (GET, listing(5, obj("a", 1))),
        (f"{WATCH} 5", ended(("ADDED", obj("b", 6)), ("MODIFIED", obj("b", 7)))),
        (f"{WATCH} 7", OPEN),
    )

    async def find_path(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return THINGS

    async def main() -> None:
        api = RecordedApi(answers)
        informer = Informer(api, find_path, {}, restarts.append, on_change=told.append)
        async with informer.running():
            await names_are(informer, "a", "b")
            await asyncio.sleep(10)
            assert told == [{"a"}, {"b"}, {"b"}]
            assert restarts == ["things"]
            api.push(THINGS, "DELETED", obj("a", 8))
            await names_are(informer, "b")
            assert told[-1] == {"a"}

    virtual_time.run_with_virtual_time(main)


def test_an_outage_soon_after_another_is_retried_as_promptly() -> None:
    outages = ((10.0, 30.0), (45.0, 65.0))

    def answer(request: Request) -> Answer:
        if any(began <= request.time < over for began, over in outages):
            return recorded_api.status(503, "ServiceUnavailable")
        return ended() if request.line == WATCH else listing(5, obj("a", 1))

    async def main() -> None:
        api = RecordedApi(answer)
        informer = Informer(api, fixed_path(THINGS), {}, lambda _: None, backoff=PROMPT_BACKOFF)
        async with informer.running():
            await asyncio.sleep(75)
        for began, over in outages:
            first, second, *_ = [each.time for each in api.requests if began <= each.time < over]
            assert second - first <= PROMPT_BACKOFF.first_s

    virtual_time.run_with_virtual_time(main)


def test_after_an_outage_a_prompt_informer_tells_of_everything_within_seconds() -> None:
    told: list[frozenset[str]] = []
    outage_s = 60.0

    def answer(request: Request) -> Answer:
        if len(told) == 1 and request.time < outage_s:
            return recorded_api.status(503, "ServiceUnavailable")
        return OPEN if request.line == WATCH else listing(5, obj("a", 1), obj("b", 2))

    async def main() -> None:
        api = RecordedApi(answer)
        informer = Informer(
            api,
            fixed_path(THINGS),
            {},
            lambda _: None,
            on_change=told.append,
            backoff=PROMPT_BACKOFF,
        )
        async with informer.running():
            await asyncio.sleep(outage_s - 1)
            assert informer.error
            await asyncio.sleep(1 + PROMPT_BACKOFF.ceiling_s)
            assert informer.error == ""
            assert told == [{"a", "b"}, {"a", "b"}]

    virtual_time.run_with_virtual_time(main)
