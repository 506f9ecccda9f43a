# SPDX-License-Identifier: Apache-2.0
"""Measures the time from the start of the plugin until a watch reports its ResourceSlices."""

import http.client
import json
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import plugin

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
WAIT_S = 30


def first_slice_s(
    server: ApiServer,
    program: Path,
    *,
    devices: int = 1,
    environ: Mapping[str, str] | None = None,
    **sections: Any,
) -> float:
    """Seconds on a new node, for which the plugin generates its CDI specs.

    Args:
        server: The API server.
        program: The plugin's program.
        devices: How many devices the slices that are waited for have at least.
        environ: Additional environment variables of the plugin.
        **sections: Those of the node's file.
    """
    with tempfile.TemporaryDirectory(prefix="nvb-") as directory:
        name = f"start-{Path(directory).name[4:].replace('_', '-').lower()}x"
        with plugin.simulated_node(Path(directory), name, **sections) as node:
            plugin.create_node_object(server, name)
            with _watching(server, name) as events:
                begin = time.perf_counter()
                with plugin.run_plugin(
                    server, node, program=[str(program)], environ=environ
                ) as process:
                    found = _wait_for(events, devices)
                    duration = time.perf_counter() - begin
                    if found < devices:
                        log = process.log.read_text()[-2000:]
                        raise RuntimeError(
                            f"{found} of {devices} devices within {WAIT_S} s; the log ends:\n{log}"
                        )
    return duration


def _wait_for(events: Iterator[Any], devices: int) -> int:
    """The number of published devices when they are enough, or when the watch has ended."""
    slices: dict[str, int] = {}
    for event in events:
        found = event["object"]
        slices[found["metadata"]["name"]] = len(found["spec"].get("devices") or ())
        if sum(slices.values()) >= devices:
            break
    return sum(slices.values())


@contextmanager
def _watching(server: ApiServer, node: str) -> Iterator[Iterator[Any]]:
    """Watch the node's slices. The watch is established when the block starts."""
    address = urllib.parse.urlsplit(server.url)
    context = ssl.create_default_context(cafile=str(server.ca_file))
    connection = http.client.HTTPSConnection(
        address.hostname or "", address.port, context=context, timeout=WAIT_S
    )
    query = {"watch": "true", "fieldSelector": f"spec.nodeName={node}", "timeoutSeconds": WAIT_S}
    headers = {"Authorization": f"Bearer {server.token}"}
    connection.request("GET", f"{SLICES}?{urllib.parse.urlencode(query)}", headers=headers)
    try:
        yield map(json.loads, iter(connection.getresponse().readline, b""))
    finally:
        connection.close()
