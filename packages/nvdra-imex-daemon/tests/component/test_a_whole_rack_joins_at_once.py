"""Eighteen members of one clique at the same moment: what it costs the API server."""

import asyncio
import time
from contextlib import AsyncExitStack

from apiserver import ApiServer
from domains import CLIQUE, cliques_path, namespace
from nvdra_api.runtime.kube import client as kube
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.connection import KubeSettings
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_imex_daemon.entries import Member, Report
from nvdra_imex_daemon.register import Register
from nvdra_imex_daemon.shapes import CliqueShape, Pod

DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
RACK = 18


def register(api: Client, space: str, number: int) -> Register:
    uid = PodUID(f"0a0a0a0a-0000-4000-8000-0000000000{number:02d}")
    node = NodeName(f"node-{number:02d}")
    member = Member(CliqueID(CLIQUE), node, f"10.4.0.{number + 1}", uid, RACK)
    shape = CliqueShape(DOMAIN, member, Pod(space, f"daemon-{number}", uid))
    return Register(api, shape, member, lambda _: None)


async def all_tell(registers: list[Register], report: Report) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.tell(report)) for each in registers]
    return [task.result() for task in tasks]


async def test_each_costs_one_write_to_join_and_one_to_be_ready(
    server: ApiServer,
) -> None:
    space = namespace(server, "rack")
    path = cliques_path(space, f"{DOMAIN}.{CLIQUE}")
    async with AsyncExitStack() as stack:
        registers = []
        for number in range(RACK):  # a connection each, as daemons on nodes of their own
            settings = KubeSettings(kubeconfig=str(server.kubeconfig), qps=20, burst=40)
            api = await stack.enter_async_context(kube.connected(settings))
            made = register(api, space, number)
            registers.append(await stack.enter_async_context(made.running()))
        began = time.monotonic()
        indexes = await all_tell(registers, Report(is_ready=False, message="starting"))
        assert sorted(indexes) == list(range(RACK))
        clique = server.call("GET", path)
        assert clique["metadata"]["generation"] == RACK
        assert len(clique["metadata"]["ownerReferences"]) == RACK

        assert await all_tell(registers, Report(is_ready=True)) == indexes
        clique = server.call("GET", path)
        assert clique["metadata"]["generation"] == 2 * RACK
        assert {each["status"] for each in clique["daemons"]} == {"Ready"}
        assert time.monotonic() - began < 15

        async with asyncio.TaskGroup() as group:
            for each in registers:
                group.create_task(each.leave())
        clique = server.call("GET", path)
        assert not clique.get("daemons")
        assert clique["metadata"]["generation"] == 3 * RACK
