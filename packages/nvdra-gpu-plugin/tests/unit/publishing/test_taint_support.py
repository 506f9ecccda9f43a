# SPDX-License-Identifier: Apache-2.0
"""Whether the API server keeps taints: when it is asked, and what its answers mean."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest
from nvdra_api.ids import NodeName
from nvdra_gpu_plugin.publishing.taint_support import TaintSupport
from nvdra_runtime.process import background_tasks
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

DRY_RUN = "POST /apis/resource.k8s.io/v1/resourceslices?dryRun=All"
GATE = "DRADeviceTaints"
LATER_S = 301


@dataclass
class Cluster:
    """An API server that keeps taints or drops them.

    Attributes:
        refusal: What it answers to a dry run instead; 0 for nothing.
        is_down: Whether it refuses everything.
    """

    version: str = "v1.34.4"
    is_kept: bool = False
    refusal: int = 0
    is_down: bool = False

    def answer(self, request: Request) -> Answer:
        if self.is_down:
            return recorded_api.status(500, "InternalError")
        if request.line == "GET /version":
            return 200, {"gitVersion": self.version}
        assert request.line == DRY_RUN
        if self.refusal:
            return recorded_api.status(self.refusal, "Forbidden")
        (device,) = request.body["spec"]["devices"]
        kept = device if self.is_kept else {"name": device["name"]}
        return 200, {**request.body, "spec": {**request.body["spec"], "devices": [kept]}}


def asked(cluster: Cluster, main: Callable[[TaintSupport, RecordedApi], Awaitable[None]]) -> None:
    """Run `main` after the API server was asked for the first time."""

    async def started() -> None:
        api, support = RecordedApi(cluster.answer), TaintSupport(NodeName("node-a"))
        assert support.is_served
        assert not support.is_known
        async with background_tasks.running(support=partial(support.run, api)):
            await asyncio.sleep(1)
            await main(support, api)

    virtual_time.run_with_virtual_time(started)


@pytest.mark.parametrize(
    ("version", "is_kept", "knows_none"),
    [("v1.32.13", False, False), ("v1.34.4", True, False), ("v1.36.3", True, True)],
)
def test_it_is_known_at_the_start(version: str, is_kept: bool, knows_none: bool) -> None:
    async def main(support: TaintSupport, api: RecordedApi) -> None:
        assert support.is_known
        assert (support.is_served, support.knows_none) == (is_kept, knows_none)
        assert api.lines() == ["GET /version", DRY_RUN]

    asked(Cluster(version, is_kept), main)


def test_an_api_server_that_is_down_at_the_start_is_asked_again() -> None:
    cluster = Cluster(is_down=True)

    async def main(support: TaintSupport, _: RecordedApi) -> None:
        assert not support.is_known
        cluster.is_down = False
        await asyncio.sleep(11)
        assert support.is_known
        assert not support.is_served

    asked(cluster, main)


def test_a_gate_that_is_switched_on_later_is_noticed_and_one_that_is_on_is_not_asked_for() -> None:
    cluster = Cluster()

    async def main(support: TaintSupport, api: RecordedApi) -> None:
        cluster.is_kept = True
        await asyncio.sleep(LATER_S)
        assert support.is_served
        await asyncio.sleep(86400)
        assert api.lines("POST") == [DRY_RUN, DRY_RUN]

    asked(cluster, main)


def test_what_a_slice_has_lost_is_believed_until_the_version_changes() -> None:
    cluster = Cluster(is_kept=True)

    async def main(support: TaintSupport, api: RecordedApi) -> None:
        support.note_dropped([GATE])
        await asyncio.sleep(86400)
        assert not support.is_served
        assert api.lines("POST") == [DRY_RUN]
        cluster.version = "v1.35.0"
        await asyncio.sleep(LATER_S)
        assert support.is_served

    asked(cluster, main)


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_dry_run_that_is_refused_leaves_the_answer_to_the_first_slice(status: int) -> None:
    async def main(support: TaintSupport, _: RecordedApi) -> None:
        assert support.is_known
        assert support.is_served
        support.note_dropped([GATE])
        assert not support.is_served

    asked(Cluster(refusal=status), main)
