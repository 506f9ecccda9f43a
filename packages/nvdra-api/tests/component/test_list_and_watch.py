# SPDX-License-Identifier: Apache-2.0
import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import KubeSettings
from nvdra_runtime.kube.informer import Informer
from nvdra_testing.faults.canned_http import CannedServer, http_response, serve_responses
from nvdra_testing.polling import wait_until

EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


def obj(name: str, version: int) -> JsonObject:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def listing(version: int, *objects: JsonObject) -> str:
    document = {"metadata": {"resourceVersion": str(version)}, "items": list(objects)}
    return http_response("200 OK", json.dumps(document))


def watching(*events: tuple[str, JsonObject]) -> str:
    lines = [json.dumps({"type": kind, "object": each}) + "\n" for kind, each in events]
    return http_response("200 OK", "".join(lines))


@asynccontextmanager
async def reflecting(
    port: CannedServer, observe_restart: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Informer]:
    lost = itertools.count()

    async def locate(deadline: float, is_lost: bool) -> str:
        return f"/things/{next(lost)}" if is_lost else "/things"

    async with (
        client.connect(KubeSettings(str(port.kubeconfig))) as api,
        Informer(api, locate, {"fieldSelector": "a=b"}, observe_restart).running() as reflector,
    ):
        yield reflector


def names(reflector: Informer) -> set[str]:
    return set(reflector.snapshot())


def has_names(reflector: Informer, expected: set[str]) -> bool:
    return names(reflector) == expected


def says_not_valid(reflector: Informer) -> bool:
    return "is not valid" in reflector.error


async def test_a_watch_resumes_where_the_last_one_ended(tmp_path: Path) -> None:
    first = watching(("ADDED", obj("b", 6)), ("BOOKMARK", obj("", 9)))
    second = watching(("ADDED", obj("c", 12)))
    async with (
        serve_responses(tmp_path, listing(5, obj("a", 1)), first, second) as port,
        reflecting(port) as reflector,
    ):
        await wait_until(lambda: names(reflector) == {"a", "b", "c"})
    listed, *watches = port.request_lines
    assert listed.startswith("GET /things?fieldSelector=a%3Db ")
    assert "resourceVersion=5&allowWatchBookmarks=true&timeoutSeconds=" in watches[0]
    assert "resourceVersion=9&" in watches[1]


async def test_each_watch_after_the_first_is_told_as_a_restart(tmp_path: Path) -> None:
    resumed = watching(("ADDED", obj("b", 6)))
    too_old = watching(("ERROR", EXPIRED))
    answers = (listing(5, obj("a", 1)), resumed, too_old, listing(9, obj("c", 9)), watching())
    restarts: list[str] = []
    async with serve_responses(tmp_path, *answers) as port, reflecting(port, restarts.append):
        await wait_until(lambda: len(port.request_lines) == 2)
        assert restarts == []
        await wait_until(lambda: len(port.request_lines) == len(answers))
    assert ["resourceVersion=" in line for line in port.request_lines] == [
        *(False, True, True, False, True)
    ]
    assert restarts == ["things", "things"]


async def test_a_version_that_the_server_no_longer_keeps_is_listed_again(tmp_path: Path) -> None:
    refused = http_response("410 Gone", json.dumps(EXPIRED))
    in_the_stream = watching(("ERROR", EXPIRED))
    answers = (
        listing(5, obj("a", 1)),
        refused,
        listing(8, obj("b", 7)),
        in_the_stream,
        listing(9, obj("c", 9)),
    )
    async with serve_responses(tmp_path, *answers) as port, reflecting(port) as reflector:
        await wait_until(lambda: names(reflector) == {"c"})
        await wait_until(lambda: len(port.request_lines) == len(answers) + 1)
    # The answers come whatever is asked for: what was asked for is the point.
    assert ["resourceVersion=" in line for line in port.request_lines] == [
        *(False, True, False, True, False, True)
    ]
    assert "resourceVersion=5&" in port.request_lines[1]
    assert "resourceVersion=8&" in port.request_lines[3]
    assert "resourceVersion=9&" in port.request_lines[5]


async def test_a_path_that_is_gone_is_looked_for_anew(tmp_path: Path) -> None:
    answers = (http_response("404 Not Found", "404 page not found"), listing(5, obj("a", 1)))
    async with serve_responses(tmp_path, *answers) as port, reflecting(port) as reflector:
        await wait_until(lambda: reflector.error)
        await wait_until(lambda: names(reflector) == {"a"} and not reflector.error)
    assert port.request_lines[1].startswith("GET /things/0?")


async def test_watches_that_end_at_once_are_not_repeated_at_once(tmp_path: Path) -> None:
    answers = (listing(5, obj("a", 1)), *[watching()] * 100)
    clock = asyncio.get_running_loop().time
    async with serve_responses(tmp_path, *answers) as port, reflecting(port):
        began = clock()
        await wait_until(lambda: len(port.request_lines) == 1 + 3)
        assert clock() - began > 1.9


async def test_who_waits_for_a_change_is_woken_by_it(tmp_path: Path) -> None:
    answers = (listing(5, obj("a", 1)), watching(("ADDED", obj("b", 6))))
    async with serve_responses(tmp_path, *answers) as port, reflecting(port) as reflector:
        serial = 0
        async with asyncio.timeout(5):
            while names(reflector) != {"a", "b"}:
                serial = await reflector.wait_for_change(serial)


async def test_what_moved_is_told_before_anybody_is_woken(tmp_path: Path) -> None:
    answers = (listing(5, obj("a", 1)), watching(("ADDED", obj("b", 6)), ("DELETED", obj("a", 7))))
    told: list[frozenset[str]] = []

    async def locate(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return "/things"

    async with (
        serve_responses(tmp_path, *answers) as port,
        client.connect(KubeSettings(str(port.kubeconfig))) as api,
        Informer(api, locate, {}, lambda _: None, on_change=told.append).running() as found,
    ):
        await found.wait_for_sync()
        assert told[0] == {"a"}
        await wait_until(lambda: names(found) == {"b"})
        assert told == [{"a"}, {"b"}, {"a"}]
        found.record_write(obj("c", 8))
        assert told[-1] == {"c"}
        assert found.get("c") == obj("c", 8)
        assert found.get("a") is None


async def test_an_object_that_exceeds_a_bound_takes_no_list_or_watch_from_the_others(
    tmp_path: Path,
) -> None:
    """A user who may create an object with our label could stop its readers."""
    deep = "[" * 5000 + "]" * 5000
    good = json.dumps(obj("a", 1))
    for extreme in (deep, r'"\ud800"', "9" * 5000, "1e999"):
        bad = f'{{"metadata":{{"name":"b","resourceVersion":"2"}},"spec":{extreme}}}'
        listed = f'{{"metadata":{{"resourceVersion":"5"}},"items":[{bad},{good}]}}'
        watched = bad.replace('"b"', '"c"').replace('"2"', '"6"')
        answers = (
            http_response("200 OK", listed),
            http_response("200 OK", f'{{"type":"ADDED","object":{watched}}}\n'),
        )
        async with serve_responses(tmp_path, *answers) as port, reflecting(port) as reflector:
            await wait_until(partial(has_names, reflector, {"a", "b", "c"}))


async def test_a_list_of_something_else_is_no_list(tmp_path: Path) -> None:
    for items in ("[1]", '[{"metadata":[]}]', '[{"metadata":{"name":1}}]', '{"a":1}', '["a"]'):
        wrong = http_response("200 OK", f'{{"metadata":{{}},"items":{items}}}')
        right = (listing(5, obj("a", 1)), watching(("ADDED", {"metadata": {}})))
        async with (
            serve_responses(tmp_path, wrong, *right, listing(9, obj("b", 8))) as port,
            reflecting(port) as reflector,
        ):
            await wait_until(partial(says_not_valid, reflector))
            await wait_until(partial(has_names, reflector, {"b"}))
