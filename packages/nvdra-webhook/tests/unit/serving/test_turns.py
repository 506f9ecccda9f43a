# SPDX-License-Identifier: Apache-2.0
"""Whose large request is answered next."""

import asyncio
import time
from functools import partial

from nvdra_webhook.serving.turns import Turns


async def test_addresses_take_turns_however_many_requests_one_has() -> None:
    turns, order, done = Turns(asyncio.get_running_loop()), list[str](), asyncio.Event()
    for name in ("a1", "a2", "a3", "b1", "c1"):
        turns.take(name[0], partial(order.append, name))
    turns.take("a", done.set)
    assert order == []
    await done.wait()
    assert order == ["a1", "b1", "c1", "a2", "a3"]


async def test_between_large_requests_others_have_as_much_time() -> None:
    """The loop is not held by what waits: what comes meanwhile is answered."""
    loop = asyncio.get_running_loop()
    turns, done = Turns(loop), asyncio.Event()
    began, ended = list[float](), list[float]()

    def work() -> None:
        began.append(loop.time())
        time.sleep(0.05)  # noqa: TID251 - what a body costs
        ended.append(loop.time())

    for _ in range(4):
        turns.take("a", work)
    turns.take("a", done.set)
    await done.wait()
    for before, end, after in zip(began, ended, began[1:], strict=False):
        assert after - end >= (end - before) * 0.9


async def test_one_that_fails_costs_others_no_turn() -> None:
    loop = asyncio.get_running_loop()
    failures = list[object]()
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    turns, done = Turns(loop), asyncio.Event()

    def fail() -> None:
        raise LookupError("a bug")

    turns.take("a", fail)
    turns.take("a", done.set)
    await asyncio.wait_for(done.wait(), 5)
    turns.take("b", fail)
    await asyncio.sleep(0)
    done.clear()
    turns.take("b", done.set)
    await asyncio.wait_for(done.wait(), 5)
    assert len(failures) == 2
