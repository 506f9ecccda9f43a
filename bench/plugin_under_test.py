# SPDX-License-Identifier: Apache-2.0
"""A running plugin on a simulated node, called by a client in place of the kubelet."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import PluginProcess

from bench.call_targets import PluginTarget
from bench.prepare_rounds import Claims


@dataclass(frozen=True)
class PluginUnderTest:
    """A newly started plugin on its own node.

    Attributes:
        process: The process of the plugin.
        target: Calls the plugin as the kubelet does.
        claims: Creates claims that are allocated on its node.
    """

    process: PluginProcess
    target: PluginTarget
    claims: Claims


@asynccontextmanager
async def run_plugin_under_test(
    server: ApiServer,
    directory: Path,
    program: Path,
    name: str,
    environ: Mapping[str, str] | None = None,
    **sections: Any,
) -> AsyncIterator[PluginUnderTest]:
    """Run a plugin that is registered with its kubelet while the block runs.

    Args:
        server: The API server.
        directory: Directory for the node's files; its path must be short.
        program: The plugin's program.
        name: Name of the node.
        environ: Additional environment variables of the plugin.
        **sections: Those of the node's file.
    """
    plugin.create_node_object(server, name)
    directory.mkdir()
    with (
        plugin.simulated_node(directory, name, **sections) as node,
        plugin.run_plugin(server, node, program=[str(program)], environ=environ) as process,
    ):
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            registered = await kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
            yield PluginUnderTest(process, PluginTarget(registered), Claims(server, name))
