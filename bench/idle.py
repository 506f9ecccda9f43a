# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.idle`: counts the API requests of an idle plugin.

All requests pass a counting proxy. Exits with 1 if there are others than a watch, its renewals and
one GET per prepared claim in ten minutes.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from nvdra_gpu_plugin.__about__ import __version__
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.faults import api_proxy
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

NODE = "idle"
SETTLE_S = 10
"""Time after the last prepare, until its spans and Events are written."""

WATCH = re.compile(r"GET .*/resourceslices\?.*watch=true")
CLAIM = re.compile(r"GET .*/resourceclaims/[^?]+$")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    release = f"%(prog)s of nvdra-gpu-plugin {__version__}"
    parser.add_argument("--version", action="version", version=release)
    parser.add_argument("--minutes", type=float, default=10, help="how long to count (10)")
    parser.add_argument("--claims", type=int, default=8, help="held meanwhile, at most 8 (8)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nvb-") as name:
        directory = Path(name)
        (directory / "api").mkdir()
        with apiserver.run_apiserver(directory / "api") as server:
            asked = asyncio.run(_asked(server, directory, given.minutes * 60, given.claims))
    kinds = Counter(_kind(what) for what in asked)
    for kind, count in sorted(kinds.items()):
        print(f"{count:4d}  {kind}")
    most = {
        "watch": given.minutes / 5 + 1,
        "GET of a held claim": given.claims * (given.minutes / 10 + 1),
    }
    beyond = [kind for kind, count in kinds.items() if count > most.get(kind, 0)]
    print(
        f"in {given.minutes:g} minutes with {given.claims} claims held:", beyond or "nothing more"
    )
    return 1 if beyond else 0


async def _asked(server: ApiServer, directory: Path, seconds: float, claims: int) -> list[str]:
    """The requests in that time, after the plugin has become idle."""
    with ExitStack() as stack:
        node = stack.enter_context(plugin.simulated_node(directory, NODE))
        plugin.create_node_object(server, NODE)
        async with (
            kubelet_client.run_kubelet(node.kubelet) as kubelet,
            api_proxy.run_proxy(server, directory) as proxy,
        ):
            rig = Rig(server, node, kubelet, stack)
            await rig.start(f"--kubeconfig={proxy.kubeconfig}")
            held = [rig.create_claim(f"gpu-{minor}") for minor in range(claims)]
            answers = await rig.dra.prepare(held)
            assert not any(answer.error for answer in answers.values())
            await asyncio.sleep(SETTLE_S)
            before = len(proxy.requests)
            await asyncio.sleep(seconds)
            return [what for _, what in proxy.requests[before:]]


def _kind(what: str) -> str:
    if WATCH.match(what):
        return "watch"
    return "GET of a held claim" if CLAIM.match(what) else what


if __name__ == "__main__":
    sys.exit(main())
