"""A plugin at work on a simulated node, with a client in the kubelet's place: what is measured."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import kubelet_client
import plugin
from apiserver import ApiServer
from plugin import PluginProcess

from bench.callers import PluginCaller
from bench.rounds import Claims


@dataclass(frozen=True)
class Station:
    """One plugin, fresh, on a node of its own.

    Attributes:
        process: The plugin.
        caller: Calls it as the kubelet would.
        claims: Makes claims allocated on its node.
    """

    process: PluginProcess
    caller: PluginCaller
    claims: Claims


@asynccontextmanager
async def station(
    server: ApiServer,
    directory: Path,
    program: Path,
    name: str,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Station]:
    """The plugin, registered with its kubelet, until the block is left.

    Args:
        server: Where claims are.
        directory: For the node's files; its own, and short.
        program: The plugin's.
        name: Of the node.
        environ: More environment for the plugin.
    """
    plugin.register(server, name)
    directory.mkdir()
    with (
        plugin.node(directory, name) as node,
        plugin.running(server, node, program=[str(program)], environ=environ) as process,
    ):
        async with kubelet_client.kubelet(node.kubelet) as kubelet:
            registered = await kubelet.registered(plugin.DRIVER, plugin.START_S)
            yield Station(process, PluginCaller(registered), Claims(server, name))
