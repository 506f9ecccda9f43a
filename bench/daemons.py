"""`python -m bench.daemons KUBECONFIG NAMESPACE`: plays the daemons of every domain, one for each.

As soon as a domain has its DaemonSet, a node is labelled for it, has the daemon's pod, and the
daemon says in its clique that it is ready. A process of its own, so that what is measured is the
controller's work. Prints a line when it watches; ends by a signal.
"""

import asyncio
import sys
from typing import Any

import domains
from nvdra_api.runtime.kube import client
from nvdra_api.runtime.kube.client import Client, KubeSettings
from nvdra_api.runtime.kube.reflector import Reflector
from nvdra_api.types import names

LONGEST_S = 60.0


async def main(kubeconfig: str, namespace: str) -> None:
    """Play until the process is ended."""
    changed = asyncio.Event()

    async def locate(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return f"/apis/apps/v1/namespaces/{namespace}/daemonsets"

    played: set[str] = set()
    async with (
        client.connected(KubeSettings(kubeconfig, qps=10_000, burst=10_000)) as api,
        Reflector(
            api,
            locate,
            {"labelSelector": names.DOMAIN_LABEL},
            lambda _: None,
            observe_change=lambda _: changed.set(),
        ).running() as daemonsets,
        asyncio.TaskGroup() as group,
    ):
        await daemonsets.synced()
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
    """What kubelet, plugin and daemon of one node do, as far as the API server sees it."""
    deadline = asyncio.get_running_loop().time() + LONGEST_S
    node = f"node-{uid}"
    labels = {names.DOMAIN_LABEL: uid}
    await api.create("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}}, deadline)
    pod: dict[str, Any] = {
        "metadata": {"name": f"daemon-{uid}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "daemon", "image": "daemon:1"}]},
    }
    made = await api.create(f"/api/v1/namespaces/{namespace}/pods", pod, deadline)
    entry = domains.entry(node, 0, podUID=made["metadata"]["uid"])
    await api.create(domains.cliques_path(namespace), domains.clique(uid, entry), deadline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
