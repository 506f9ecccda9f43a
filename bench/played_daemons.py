# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.played_daemons KUBECONFIG NAMESPACE`: simulates one daemon for every domain.

As soon as a domain has its DaemonSet, this program labels a node, creates the daemon's pod, and
writes a ready entry into the domain's clique. Like a daemon, it writes the entry again if it is
removed: the controller's watch of cliques may be ahead of those of nodes and pods, and then the
entry is stale to it. It is a separate process, so that only the controller's work is measured. It
prints a line when it watches, and ends by a signal.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kube.errors import Conflict, NotFound
from nvdra_runtime.kube.informer import Informer
from nvdra_testing.control_plane import domain_objects

LONGEST_S = 60.0


async def main(kubeconfig: str, namespace: str) -> None:
    """Simulate the daemons until the process is ended."""
    changed = asyncio.Event()
    async with (
        client.connect(KubeSettings(kubeconfig, qps=10_000, burst=10_000)) as api,
        _watching(api, f"/apis/apps/v1/namespaces/{namespace}/daemonsets", changed) as daemonsets,
        _watching(api, domain_objects.cliques_path(namespace), changed) as cliques,
        asyncio.TaskGroup() as group,
    ):
        print("watching", flush=True)
        played: set[str] = set()
        entries: dict[str, Any] = {}
        answered: set[str] = set()
        while True:
            changed.clear()
            for each in daemonsets.snapshot().values():
                uid = each["metadata"]["labels"][names.DOMAIN_LABEL]
                if uid not in played:
                    played.add(uid)
                    group.create_task(_join(api, namespace, uid, entries))
            for each in cliques.snapshot().values():
                entry = entries.get(each["metadata"]["labels"][names.DOMAIN_LABEL])
                version = each["metadata"]["resourceVersion"]
                if entry and not each.get("daemons") and version not in answered:
                    answered.add(version)
                    group.create_task(_join_again(api, namespace, each, entry))
            await changed.wait()


@asynccontextmanager
async def _watching(api: Client, path: str, changed: asyncio.Event) -> AsyncIterator[Informer]:
    async def locate(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return path

    query = {"labelSelector": names.DOMAIN_LABEL}
    watch = Informer(api, locate, query, lambda _: None, on_change=lambda _: changed.set())
    async with watch.running() as informer:
        await informer.wait_for_sync()
        yield informer


async def _join(api: Client, namespace: str, uid: str, entries: dict[str, Any]) -> None:
    """Write what kubelet, plugin and daemon of one node write to the API server."""
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    node = f"node-{uid}"
    labels = {names.DOMAIN_LABEL: uid}
    await api.create("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}}, deadline)
    pod: dict[str, Any] = {
        "metadata": {"name": f"daemon-{uid}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "daemon", "image": "daemon:1"}]},
    }
    created = await api.create(f"/api/v1/namespaces/{namespace}/pods", pod, deadline)
    entries[uid] = domain_objects.clique_entry(node, 0, podUID=created["metadata"]["uid"])
    await api.create(
        domain_objects.cliques_path(namespace), domain_objects.clique(uid, entries[uid]), deadline
    )


async def _join_again(api: Client, namespace: str, clique: JsonObject, entry: Any) -> None:
    """Write the daemon's entry into its clique, which somebody removed."""
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    path = domain_objects.cliques_path(namespace, clique["metadata"]["name"])
    with suppress(Conflict, NotFound):  # the watch reports what it is now
        await api.replace(path, {**clique, "daemons": [entry]}, deadline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
