# SPDX-License-Identifier: Apache-2.0
"""A node with a plugin's process on it; the test is the kubelet."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvdra_api.resource.claims import ClaimRef

from nvdra_testing import programs, yaml_documents
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.kubelet.kubelet_client import KubeletClient, RegisteredPlugin
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import Node, PluginProcess
from nvdra_testing.polling import WAIT_S

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass
class Rig:
    """One node and its plugin.

    Attributes:
        driver: The plugin's driver name; by default the GPU driver.
        program: The plugin's command.
    """

    server: ApiServer
    node: Node
    kubelet: KubeletClient
    stack: ExitStack
    driver: str = plugin.DRIVER
    program: str = "nvdra-gpu-plugin"
    process: PluginProcess = field(init=False)
    dra: RegisteredPlugin = field(init=False)

    @property
    def plugin_dir(self) -> Path:
        """The plugin's directory for its sockets and state."""
        return self.node.kubelet / "plugins" / self.driver

    def launch(
        self,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> PluginProcess:
        """Start the plugin, or another program, without waiting for its registration."""
        starting = plugin.run_plugin(
            self.server,
            self.node,
            flags=flags,
            environ=environ,
            program=program or (self.program,),
        )
        return self.stack.enter_context(starting)

    async def start(self, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        """Start the plugin, and wait until it is registered and has published its slices."""
        self.process = self.launch(*flags, environ=environ)
        await self.kubelet.wait_registered(self.driver, plugin.START_S)
        await self.wait_until(
            lambda: self.process.get("/readyz")[0] == 200, "the plugin to be ready"
        )
        self.dra = await self.kubelet.wait_registered(self.driver)

    async def start_without_ready(self, *flags: str, program: Sequence[str] = ()) -> None:
        """Start a plugin that will not become ready, or another program in its place."""
        starting = plugin.run_plugin(
            self.server, self.node, flags=flags, program=program or (self.program,)
        )
        self.process = self.stack.enter_context(starting)
        self.dra = await self.kubelet.wait_registered(self.driver, plugin.START_S)
        await self.wait_until(self.process.is_listening, "its ports")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the plugin, and wait until the kubelet has noticed."""
        await asyncio.to_thread(self.process.stop, number)
        if number == signal.SIGTERM:
            await self.kubelet.wait_deregistered(self.driver)
        else:  # the sockets of a killed plugin stay
            await self.kubelet.restart()

    def create_claim(self, *devices: str, **how: Any) -> ClaimRef:
        """Create a claim that is allocated to these devices of the node."""
        return plugin.create_allocated_claim(self.server, self.node.name, devices, **how)

    def spans(self, claim: ClaimRef, name: str) -> list[dict[str, Any]]:
        """The spans of this name in a claim's trace, at any depth."""
        status, body = self.process.get(f"/debug/traces/{claim.uid}", debug=True)
        found = flatten_spans(json.loads(body)["spans"]) if status == 200 else ()
        return [span for span in found if span["name"] == name]

    def delete_claim(self, claim: ClaimRef) -> None:
        """Delete the claim in the API server."""
        self.server.request("DELETE", f"{plugin.claims_path(claim.namespace)}/{claim.name}")

    def slices(self) -> list[dict[str, Any]]:
        """The node's slices in the API server."""
        found = self.server.request("GET", f"{SLICES}?fieldSelector=spec.nodeName={self.node.name}")
        return list(found["items"])

    def devices(self) -> dict[str, dict[str, Any]]:
        """The published devices by name."""
        return {
            device["name"]: device
            for slice_ in self.slices()
            for device in slice_["spec"].get("devices") or []
        }

    def events(self, reason: str) -> list[dict[str, Any]]:
        """The events with this reason that the node's plugin wrote."""
        found = self.server.request("GET", f"/api/v1/events?fieldSelector=reason={reason}")["items"]
        return [event for event in found if event["source"].get("host") == self.node.name]

    def status(self, *arguments: str) -> str:
        """Run the plugin's `status` command, which must succeed, and return its output."""
        return self.command("status", *arguments)

    def command(self, name: str, *arguments: str) -> str:
        """Run one of the plugin's commands, which must succeed, and return its output."""
        done = self.run_command(name, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the plugin's commands beside it, as `kubectl exec` does."""
        program = str(programs.path(self.program))
        argv: list[str] = [program, name, f"--debug-endpoint={self.process.debug}", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def recorded_claims(self) -> dict[str, str]:
        """The claims in the state file: payload by claim UID."""
        path = self.plugin_dir / "state.sqlite"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT uid, payload FROM records"))

    async def wait_until(
        self, is_so: Callable[[], bool], what: str, timeout_s: float = WAIT_S
    ) -> None:
        """Wait for something that the plugin does by itself.

        The condition may query the plugin before it listens: its sockets are there before its
        ports.
        """
        deadline = time.monotonic() + timeout_s
        while not _holds(is_so):
            log = self.process.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"waited for {what}; the log ends:\n{log}"
            await asyncio.sleep(0.05)


def _holds(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False


def flatten_spans(spans: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The nested spans of a trace of the debug endpoint, one after the other."""
    for span in spans:
        yield span
        yield from flatten_spans(span.get("children", ()))


def cdi_edits(rig: Rig, name: str) -> dict[str, Any]:
    """What a container gets for a CDI device beside what all get, as its runtime finds it."""
    _, device = _cdi_device(rig, name)
    return dict(device["containerEdits"])


def all_cdi_edits(rig: Rig, name: str) -> dict[str, Any]:
    """What a container gets for a CDI device: its own, and what all devices of its spec give."""
    found: dict[str, Any] = {}
    for each in _cdi_device(rig, name):
        for kind, values in each.get("containerEdits", {}).items():
            found.setdefault(kind, []).extend(values)
    return found


def _cdi_device(rig: Rig, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec and the entry of a CDI device."""
    kind, _, device = name.partition("=")
    for path in rig.node.cdi.glob("*.yaml"):
        spec = yaml_documents.load(path.read_text())
        for each in spec["devices"]:
            if spec["kind"] == kind and each["name"] == device:
                return spec, each
    raise AssertionError(f"no CDI spec in {rig.node.cdi} has {name}")


def cdi_names(answer: Any) -> Sequence[str]:
    """The CDI names in the answer for one claim, in order; an error has none to compare."""
    assert not answer.error, answer.error
    return [name for device in answer.devices for name in device.cdi_device_ids]


@asynccontextmanager
async def open_rig(
    server: ApiServer, name: str, profile: str | None = plugin.PROFILE, **sections: Any
) -> AsyncIterator[Rig]:
    """A simulated node with a kubelet, until the block ends. The plugin is not started.

    Args:
        server: The API server.
        name: The node's name.
        profile: Its hardware.
        **sections: Those of the node's file.
    """
    # Sockets have at most 107 bytes of path: pytest's own directories are too long. In memory, for
    # on the disk every commit would wait for what else is being written, and a call has its time.
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory, ExitStack() as stack:
        node = stack.enter_context(
            plugin.simulated_node(Path(directory), name, profile, **sections)
        )
        plugin.create_node_object(server, name)
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            yield Rig(server, node, kubelet, stack)
