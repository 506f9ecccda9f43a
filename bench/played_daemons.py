"""`python -m bench.played_daemons KUBECONFIG NAMESPACE`: simulates one daemon for every domain.

As soon as a domain has its DaemonSet, this program labels a node, creates the daemon's pod, and
writes a ready entry into the domain's clique. It is a separate process, so that only the
controller's work is measured. It prints a line when it watches, and ends by a signal.
"""

import asyncio
import sys
from typing import Any

from nvdra_api import names
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kube.informer import Informer
from nvdra_testing.control_plane import domain_objects

LONGEST_S = 60.0


async def main(kubeconfig: str, namespace: str) -> None:
    """Simulate the daemons until the process is ended."""
    changed = asyncio.Event()

    async def locate(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return f"/apis/apps/v1/namespaces/{namespace}/daemonsets"

    played: set[str] = set()
    async with (
        client.connect(KubeSettings(kubeconfig, qps=10_000, burst=10_000)) as api,
        Informer(
            api,
            locate,
            {"labelSelector": names.DOMAIN_LABEL},
            lambda _: None,
            on_change=lambda _: changed.set(),
        ).running() as daemonsets,
        asyncio.TaskGroup() as group,
    ):
        await daemonsets.wait_for_sync()
        print("watching", flush=True)
        while True:
            changed.clear()
            for each in daemonsets.snapshot().values():
                uid = each["metadata"]["labels"][names.DOMAIN_LABEL]
                if uid not in played:
                    played.add(uid)
                    group.create_task(_join(api, namespace, uid))
            await changed.wait()


async def _join(api: Client, namespace: str, uid: str) -> None:
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
    entry = domain_objects.clique_entry(node, 0, podUID=created["metadata"]["uid"])
    await api.create(
        domain_objects.cliques_path(namespace), domain_objects.clique(uid, entry), deadline
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
