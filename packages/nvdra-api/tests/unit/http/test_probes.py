# SPDX-License-Identifier: Apache-2.0
"""`/healthz` and `/readyz`: when they fail, and what they say to whom."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from nvdra_runtime.http import listener, probes
from nvdra_runtime.http.probes import Check, PassingRemark

Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
def alive() -> dict[str, Check]:
    return {"loop": lambda: None}


@pytest.fixture
def ready() -> dict[str, Check]:
    return {"kubelet": lambda: None, "fabric": lambda: PassingRemark("clique 6f1c.2")}


@pytest.fixture
async def address(alive: dict[str, Check], ready: dict[str, Check]) -> AsyncIterator[str]:
    routes = probes.routes(alive=alive, ready=ready)
    async with listener.listen("127.0.0.1:0", routes) as address:
        yield address


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_probe_that_passes_is_one_word(ask: Ask, address: str, path: str) -> None:
    answer = await ask(address, path)
    assert (answer.status, answer.content_type, answer.text) == (200, "text/plain", "ok")


async def test_each_check_has_a_line_for_whoever_asks(ask: Ask, address: str) -> None:
    assert (await ask(address, "/readyz?verbose")).text == (
        "[+]kubelet ok\n[+]fabric ok: clique 6f1c.2\nreadyz check passed\n"
    )
    assert (await ask(address, "/healthz?verbose")).text == "[+]loop ok\nhealthz check passed\n"


async def test_a_failure_is_told_with_every_check_although_nobody_asked(
    ask: Ask, address: str, ready: dict[str, Check]
) -> None:
    ready["state"] = lambda: "the disk is full"
    answer = await ask(address, "/readyz")
    assert answer.status == 503
    assert answer.text == (
        "[+]kubelet ok\n"
        "[+]fabric ok: clique 6f1c.2\n"
        "[-]state failed: the disk is full\n"
        "readyz check failed\n"
    )


async def test_a_component_that_is_not_ready_need_not_be_restarted(
    ask: Ask, address: str, alive: dict[str, Check], ready: dict[str, Check]
) -> None:
    ready["state"] = lambda: "the disk is full"
    assert (await ask(address, "/healthz")).status == 200
    ready.clear()
    alive["loop"] = lambda: "stuck"
    assert (await ask(address, "/healthz")).status == 503
    assert (await ask(address, "/readyz")).status == 200


async def test_a_program_gets_json_with_the_result_of_each_check(
    ask: Ask, address: str, ready: dict[str, Check]
) -> None:
    answer = await ask(address, "/readyz", accept="application/json")
    passed = {"kubelet": None, "fabric": "clique 6f1c.2"}
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.text) == {"ok": True, "checks": passed}

    ready["state"] = lambda: "the disk is full"
    answer = await ask(address, "/readyz", accept="application/json, */*;q=0.1")
    assert answer.status == 503
    assert json.loads(answer.text) == {
        "ok": False,
        "checks": {**passed, "state": "the disk is full"},
    }


async def test_a_check_is_asked_at_each_request(
    ask: Ask, address: str, ready: dict[str, Check]
) -> None:
    results = iter(["not yet", None])
    ready["slices"] = lambda: next(results)
    statuses = [(await ask(address, "/readyz")).status for _ in range(2)]
    assert statuses == [503, 200]


@pytest.mark.parametrize(
    ("result", "is_failure"),
    [(None, False), ("", False), (PassingRemark("whole"), False), ("broken", True)],
)
def test_only_a_text_that_is_no_remark_is_a_failure(result: str | None, is_failure: bool) -> None:
    assert probes.is_failure(result) is is_failure
