# SPDX-License-Identifier: Apache-2.0
"""Eighteen daemons join a clique at the same time: the number of writes."""

import asyncio
import time
from contextlib import AsyncExitStack

from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_imex_daemon.membership.entries import MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_list import MemberList
from nvdra_imex_daemon.membership.member_store import CliqueMemberStore, Pod
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_objects import CLIQUE, cliques_path, create_namespace

DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
RACK = 18


def register(api: Client, space: str, number: int) -> MemberList:
    uid = PodUID(f"0a0a0a0a-0000-4000-8000-0000000000{number:02d}")
    node = NodeName(f"node-{number:02d}")
    member = MemberIdentity(CliqueID(CLIQUE), node, f"10.4.0.{number + 1}", uid, RACK)
    shape = CliqueMemberStore(DOMAIN, member, Pod(space, f"daemon-{number}", uid))
    return MemberList(api, shape, member, lambda _: None)


async def all_tell(registers: list[MemberList], report: MemberStatus) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.report(report)) for each in registers]
    return [task.result() for task in tasks]


async def test_each_daemon_needs_one_write_to_join_and_one_to_be_ready(
    server: ApiServer,
) -> None:
    space = create_namespace(server, "rack")
    path = cliques_path(space, f"{DOMAIN}.{CLIQUE}")
    async with AsyncExitStack() as stack:
        registers = []
        for number in range(RACK):  # one connection each, like daemons on different nodes
            settings = KubeSettings(kubeconfig=str(server.kubeconfig), qps=20, burst=40)
            api = await stack.enter_async_context(kube.connect(settings))
            made = register(api, space, number)
            registers.append(await stack.enter_async_context(made.running()))
        began = time.monotonic()
        indexes = await all_tell(registers, MemberStatus(is_ready=False, message="starting"))
        assert sorted(indexes) == list(range(RACK))
        clique = server.request("GET", path)
        assert clique["metadata"]["generation"] == RACK
        assert len(clique["metadata"]["ownerReferences"]) == RACK

        assert await all_tell(registers, MemberStatus(is_ready=True)) == indexes
        clique = server.request("GET", path)
        assert clique["metadata"]["generation"] == 2 * RACK
        assert {each["status"] for each in clique["daemons"]} == {"Ready"}
        assert time.monotonic() - began < 45

        async with asyncio.TaskGroup() as group:
            for each in registers:
                group.create_task(each.leave())
        clique = server.request("GET", path)
        assert not clique.get("daemons")
        assert clique["metadata"]["generation"] == 3 * RACK
