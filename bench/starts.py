"""From the start of the process to its first slice in the API server, as a watcher sees it."""

import http.client
import json
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plugin
from apiserver import ApiServer

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
WAIT_S = 30


def first_slice_s(server: ApiServer, program: Path) -> float:
    """Seconds, on a node that was never served before: its hardware is described anew."""
    with tempfile.TemporaryDirectory(prefix="nvb-") as directory:
        name = f"start-{Path(directory).name[4:].replace('_', '-').lower()}x"
        with plugin.node(Path(directory), name) as node:
            plugin.register(server, name)
            with _watching(server, name) as lines:
                begin = time.perf_counter()
                with plugin.running(server, node, program=[str(program)]) as process:
                    seen = next((each for each in lines if each["type"] == "ADDED"), None)
                    duration = time.perf_counter() - begin
                    if seen is None or not seen["object"]["spec"]["devices"]:
                        log = process.log.read_text()[-2000:]
                        raise RuntimeError(f"no slice within {WAIT_S} s; the log ends:\n{log}")
    return duration


@contextmanager
def _watching(server: ApiServer, node: str) -> Iterator[Iterator[Any]]:
    """Events of the node's slices, from now on; the watch is established when the block begins."""
    address = urllib.parse.urlsplit(server.url)
    context = ssl.create_default_context(cafile=str(server.authority))
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
