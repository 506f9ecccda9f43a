# SPDX-License-Identifier: Apache-2.0
"""Looks at connections: what is reported of them, and when nothing is asked."""

import json

import pytest
from nvdra_api.ids import NodeName
from nvdra_imex_daemon.process.link_monitor import LinkMonitor
from nvdra_runtime.computedomain import imex_links
from nvdra_runtime.computedomain.imex_links import DomainHosts, ImexLinks

BOTH = DomainHosts(("a",), {"b": NodeName("node-b")}, ("a", "b"))
BROKEN = ImexLinks({NodeName("node-b"): "RECOVERING"})


def answer(word: str) -> bytes:
    links = {"0": {"status": "CONNECTED"}, "1": {"status": word}}
    nodes = {
        "0": {"status": "READY", "host": "a", "connections": links},
        "1": {"status": "READY", "host": "b", "connections": {}},
    }
    return json.dumps({"nodes": nodes}).encode()


class Domain:
    """Answers of IMEX, and what was reported of them."""

    def __init__(self) -> None:
        self.hosts = BOTH
        self.signals = 0
        self.answers: list[bytes | None] = []
        self.reports: list[ImexLinks] = []
        self.monitor = LinkMonitor(self._answer, lambda: self.hosts, self._report, self._end)

    async def _answer(self) -> bytes | None:
        return self.answers.pop(0)

    async def _report(self, links: ImexLinks) -> None:
        self.reports.append(links)

    def _end(self) -> None:
        self.signals += 1

    async def look(self, *answers: bytes | None) -> list[ImexLinks]:
        self.answers += answers
        for _ in answers:
            await self.monitor.look()
        return self.reports


async def test_a_connection_that_was_missing_twice_is_reported_until_it_is_back() -> None:
    reports = await Domain().look(
        answer("CONNECTED"), *[answer("RECOVERING")] * 2, answer("CONNECTED")
    )
    assert reports == [imex_links.WELL, imex_links.WELL, BROKEN, imex_links.WELL]


async def test_an_answer_that_says_nothing_changes_nothing() -> None:
    reports = await Domain().look(answer("RECOVERING"), b"-j is no option", answer("RECOVERING"))
    assert reports == [imex_links.WELL, BROKEN]


async def test_two_looks_without_an_answer_are_a_failure() -> None:
    reports = await Domain().look(answer("CONNECTED"), None, None)
    assert reports[1] == imex_links.WELL
    assert reports[2].failure == "nvidia-imex-ctl -N gave no answer within 20 s"


@pytest.mark.parametrize(
    "hosts", [DomainHosts((), BOTH.ready, BOTH.listed), DomainHosts(BOTH.own, {}, ("a",))]
)
async def test_who_is_not_ready_or_was_always_alone_asks_nobody_and_says_nothing(
    hosts: DomainHosts,
) -> None:
    domain = Domain()
    domain.hosts = hosts
    await domain.monitor.look()
    assert domain.reports == [imex_links.WELL]


async def test_who_is_not_ready_any_more_says_nothing() -> None:
    domain = Domain()
    await domain.look(*[answer("RECOVERING")] * 2)
    domain.hosts = DomainHosts((), BOTH.ready, BOTH.listed)
    await domain.monitor.look()
    assert domain.reports == [imex_links.WELL, BROKEN, imex_links.WELL]


async def test_a_connection_to_a_peer_that_has_left_is_ended_once_and_reported_if_it_stays() -> (
    None
):
    domain = Domain()
    await domain.look(answer("CONNECTED"))
    domain.hosts = DomainHosts(BOTH.own, {}, ("a",))  # now it is alone
    assert domain.signals == 0
    reports = await domain.look(*[answer("CONNECTED")] * 3)
    assert reports[2:] == [ImexLinks(strangers={"b": ""})] * 2
    assert domain.signals == 1
    reports = await domain.look(answer("DISCONNECTED"))
    assert reports[-1] == imex_links.WELL
    await domain.look(answer("CONNECTED"))
    assert domain.signals == 2
