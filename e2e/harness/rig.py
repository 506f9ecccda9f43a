"""One node, the plugin's process on it, and the test in the kubelet's place."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plugin
from apiserver import ApiServer
from kubelet_client import KubeletClient, Plugin
from nvdra_api.types.claims import ClaimRef
from plugin import Node, PluginProcess

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass
class Rig:
    """One node and its plugin, as the kubelet meets it.

    Attributes:
        driver: The plugin's; the GPU plugin's unless said.
        program: Its command.
    """

    server: ApiServer
    node: Node
    kubelet: KubeletClient
    stack: ExitStack
    driver: str = plugin.DRIVER
    program: str = "nvdra-gpu-plugin"
    process: PluginProcess = field(init=False)
    dra: Plugin = field(init=False)

    @property
    def plugin_dir(self) -> Path:
        """Where the plugin has its sockets and its state."""
        return self.node.kubelet / "plugins" / self.driver

    def launch(self, *flags: str, environ: Mapping[str, str] | None = None) -> PluginProcess:
        """Start the plugin; for one that will not register."""
        program = (self.program,)
        starting = plugin.running(
            self.server, self.node, flags=flags, environ=environ, program=program
        )
        return self.stack.enter_context(starting)

    async def start(self, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        """Start the plugin and wait until it is registered and has published."""
        self.process = self.launch(*flags, environ=environ)
        await self.kubelet.registered(self.driver, plugin.START_S)
        await self.until(lambda: self.process.get("/readyz")[0] == 200, "the plugin to be ready")
        self.dra = await self.kubelet.registered(self.driver)

    async def serve(self, *flags: str, program: Sequence[str] = ()) -> None:
        """Start a plugin that will not be ready, or another program in its place."""
        starting = plugin.running(
            self.server, self.node, flags=flags, program=program or (self.program,)
        )
        self.process = self.stack.enter_context(starting)
        self.dra = await self.kubelet.registered(self.driver, plugin.START_S)
        await self.until(self.process.is_listening, "its ports")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the plugin; the kubelet has noticed when this returns."""
        await asyncio.to_thread(self.process.stop, number)
        if number == signal.SIGTERM:
            await self.kubelet.gone(self.driver)
        else:  # the sockets of a killed one stay where they were
            await self.kubelet.restart()

    def claim(self, *devices: str, **how: Any) -> ClaimRef:
        """A new claim, allocated to these devices of the node."""
        return plugin.allocated_claim(self.server, self.node.name, devices, **how)

    def spans(self, claim: ClaimRef, name: str) -> list[dict[str, Any]]:
        """The spans of this name that the plugin remembers of a claim, at any depth."""
        status, body = self.process.get(f"/debug/traces/{claim.uid}", debug=True)
        found = flat(json.loads(body)["spans"]) if status == 200 else ()
        return [span for span in found if span["name"] == name]

    def delete(self, claim: ClaimRef) -> None:
        """Remove the claim from the API server."""
        self.server.call("DELETE", f"{plugin.claims_path(claim.namespace)}/{claim.name}")

    def slices(self) -> list[dict[str, Any]]:
        """The node's slices, as the API server holds them."""
        found = self.server.call("GET", f"{SLICES}?fieldSelector=spec.nodeName={self.node.name}")
        return list(found["items"])

    def devices(self) -> dict[str, dict[str, Any]]:
        """Published devices by name."""
        return {
            device["name"]: device
            for slice_ in self.slices()
            for device in slice_["spec"].get("devices", [])
        }

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Events with this reason that the node's plugin wrote."""
        found = self.server.call("GET", f"/api/v1/events?fieldSelector=reason={reason}")["items"]
        return [event for event in found if event["source"].get("host") == self.node.name]

    def status(self, *arguments: str) -> str:
        """What the command `status` prints beside the plugin; it must succeed."""
        command = Path(sys.executable).with_name(self.program)
        argv = [command, "status", f"--debug-endpoint={self.process.debug}", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def held(self) -> dict[str, str]:
        """What the state file says is prepared: payload by claim UID."""
        path = self.plugin_dir / "state.sqlite"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT uid, payload FROM records"))

    async def until(self, is_so: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        """Wait for something that the plugin does by itself.

        Where it is asked for, it may not listen yet: its sockets are there before its ports.
        """
        deadline = time.monotonic() + timeout_s
        while not _is_so(is_so):
            log = self.process.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"waited for {what}; the log ends:\n{log}"
            await asyncio.sleep(0.05)


def _is_so(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False


def flat(spans: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Spans of a trace as the debug endpoint nests them, one after the other."""
    for span in spans:
        yield span
        yield from flat(span.get("children", ()))


def cdi_names(answer: Any) -> Sequence[str]:
    """The CDI names in an answer for one claim, in order."""
    return [name for device in answer.devices for name in device.cdi_device_ids]
