# SPDX-License-Identifier: Apache-2.0
"""The pods of MPS control daemons, in the place of the Deployment controller and the kubelet.

The command of each Deployment of a node runs as a process, with its environment, and with the paths
of its mounts replaced by those of the node.
"""

import asyncio
import hashlib
import signal
import subprocess
import threading
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from nvdra_api.ids import NodeName
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import daemon_files, deployment
from nvdra_runtime.process import background_tasks

from nvdra_testing import programs
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node.plugin import DRIVER, Node

NAMESPACE = "default"
PATH = deployment.PATH.format(namespace=NAMESPACE)
FLAGS = (
    f"--namespace={NAMESPACE}",
    "--image-name=nvdra:test",
    "--mps-daemon-termination-grace-period-seconds=0",
)
"""Flags of the plugin. A pod that is deleted ends at once, as with `kubectl delete --now`."""
_INTERVAL_S = 0.1


class MpsPods:
    """The daemons of one node.

    Attributes:
        processes: One for each Deployment, by its UID.
        is_idle: Whether no pod is started: the kubelet has other things to do.
    """

    def __init__(self, server: ApiServer, node: Node) -> None:
        self._server = server
        self._node = node
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.is_idle = False
        self._starting = threading.Lock()

    def deployments(self) -> dict[str, dict[str, Any]]:
        """The node's Deployments by UID."""
        node = deployment.node_value(NodeName(self._node.name))
        query = f"{PATH}?labelSelector={deployment.NODE_LABEL}%3D{node}"
        found = self._server.request("GET", query)["items"]
        return {each["metadata"]["uid"]: each for each in found}

    def running(self) -> list[str]:
        """The names of the daemons that have a process."""
        return [each.path.name for each in self.directories() if each.is_locked]

    def directories(self) -> list[daemon_files.DaemonDirectory]:
        """What the node has of daemons."""
        return list(daemon_files.all_of(self._node.kubelet / "plugins" / DRIVER))

    def is_clean(self) -> bool:
        """Whether nothing is left of any daemon."""
        return not (self.directories() or self.deployments())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["MpsPods"]:
        """Run what the Deployments want while the block runs; leave nothing."""
        try:
            async with background_tasks.running(kubelet=self._run):
                yield self
        finally:
            for process in self.processes.values():
                process.send_signal(signal.SIGTERM)
            for process in self.processes.values():
                await asyncio.to_thread(process.wait, 20)
            self.remove_all()

    def remove_all(self) -> None:
        """Delete the node's Deployments, and leave nothing mounted."""
        for each in self.directories():
            each.unmount()
        for name in [each["metadata"]["name"] for each in self.deployments().values()]:
            try:
                self._server.request("DELETE", f"{PATH}/{name}")
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.NOT_FOUND:  # the plugin has deleted it meanwhile
                    raise

    async def _run(self) -> None:
        while True:
            with suppress(OSError):  # the API server is away
                await asyncio.to_thread(self._sync)
            await asyncio.sleep(_INTERVAL_S)

    def _sync(self) -> None:
        wanted = self.deployments()
        for uid in self.processes.keys() - wanted.keys():
            self.processes[uid].send_signal(signal.SIGTERM)
        for uid, each in wanted.items():
            with self._starting:
                process = self.processes.get(uid)
                if not self.is_idle and (process is None or process.poll() is not None):
                    self.processes[uid] = self._start(each)

    def reboot(self) -> None:
        """End all daemons at once, and lose what is in memory.

        No pod is started meanwhile: its daemon would find the memory of the one before.
        """
        with self._starting:
            for process in self.processes.values():
                process.kill()
            for each in self.directories():
                _kill_all_below(each.path)
                each.unmount()

    def _start(self, wanted: dict[str, Any]) -> subprocess.Popen[bytes]:
        pod = wanted["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
        name: str = wanted["metadata"]["name"]
        mounts = sorted(
            (
                (each["mountPath"], self._shortened(paths[each["name"]]))
                for each in container["volumeMounts"]
            ),
            key=lambda mount: -len(mount[0]),
        )

        def on_node(text: str) -> str:
            flag, equals, path = text.partition("=")
            if flag == "--ready-file":  # it is in the container
                return f"{flag}={self._node.kubelet.parent / name}{path.replace('/', '-')}"
            for inside, outside in mounts:
                if path == inside or path.startswith(f"{inside}/"):
                    return f"{flag}={outside}{path.removeprefix(inside)}"
            return f"{flag}{equals}{path}"

        words: list[str] = [*container["command"], *container["args"]]
        argv = [str(programs.path(words[0])), *map(on_node, words[1:])]
        environment = {each["name"]: each["value"] for each in container["env"]}
        return subprocess.Popen(argv, env={"PATH": "/usr/bin:/bin", **environment})

    def _shortened(self, path: str) -> str:
        """A short path of a directory, as in a container: sockets have at most 107 bytes."""
        if not path.endswith(f"/{mps_layout.PIPE}"):
            return path
        daemon = Path(path).parent.name
        link = self._node.kubelet.parent / f"p{hashlib.sha256(daemon.encode()).hexdigest()[:8]}"
        if not link.is_symlink():
            link.symlink_to(path)
        return str(link)


def _kill_all_below(directory: Path) -> None:
    """Kill the processes that have the daemon's lock open."""
    lock = directory / mps_layout.LOCK
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            is_user = any(each.resolve() == lock for each in descriptors.iterdir())
        except OSError:
            continue
        if is_user:
            subprocess.run(["kill", "-9", descriptors.parent.name], check=False)
