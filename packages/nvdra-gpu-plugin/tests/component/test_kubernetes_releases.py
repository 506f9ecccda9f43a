# SPDX-License-Identifier: Apache-2.0
"""The plugin with all its gates on API servers of several releases, with their gates off and on.

An API server drops a field whose gate is off without a word. Whoever compares what is stored with
what was sent would then write it for ever. A usual run has the release of all other tests.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from nvdra_lab import environment, versions
from nvdra_lab.artifacts import binaries
from nvdra_testing.control_plane import apiserver, request_counts
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import rig as rigs

RELEASES = (
    (versions.DEFAULT, ""),
    ("1.32", "bare"),
    ("1.32", "gates"),
    ("1.34", "bare"),
    ("1.34", "gates"),
    ("1.37", ""),
)
"""Bare ones have no gate but that of dynamic resource allocation."""
FEATURES = (
    "--feature-gates=DynamicMIG=true,ConsumableShares=true,TimeSlicingSettings=true,"
    "NVMLDeviceHealthCheck=true,DeviceMetadata=true",
    "--consumable-shares=unlimited",
)
TOLD = ("DRAPartitionableDevices", "DRAConsumableCapacity")
QUIET_S = 12
"""Longer than between two looks at the node, and than the first pauses after a failure."""
LONGEST_S = 60


class Api(NamedTuple):
    """A running API server.

    Attributes:
        server: It.
        dropped: The gates of `TOLD` that are off.
    """

    server: ApiServer
    dropped: set[str]

    def writes(self) -> float:
        """How many slices and Events it has been sent."""
        counts = request_counts.parse(self.server.text("/metrics"))
        return counts.writes("resourceslices") + counts.writes("events")

    async def wait_quiet(self) -> None:
        """Wait until nothing is written for some time."""
        async with asyncio.timeout(LONGEST_S):
            before = -1.0
            while (now := self.writes()) != before:
                before = now
                await asyncio.sleep(QUIET_S)


@pytest.fixture
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    """An API server of a release."""
    wanted, what = request.param
    release = versions.resolve(wanted, binaries.releases(environment.read(), "kubernetes"))
    gates = {versions.DRA: True} if what == "bare" else versions.gates(release, {})
    minor = versions.numbers(release)[1]
    served = versions.runtime_config(release, {})
    with apiserver.run_apiserver(
        tmp_path,
        kubernetes=release,
        feature_gates=versions.as_text(gates),
        runtime_config=",".join(f"{each}=true" for each in served),
    ) as server:
        yield Api(
            server,
            {gate for gate in TOLD if not gates.get(gate, minor >= versions.GATES[gate][1])},
        )


@pytest.mark.soak
@pytest.mark.parametrize("api", RELEASES, ids=" ".join, indirect=True)
async def test_slices_are_written_once_and_what_the_server_drops_is_told(api: Api) -> None:
    async with rigs.open_rig(api.server, "node-a") as rig:
        await rig.start(*FEATURES)
        await api.wait_quiet()
        rig.node.simctl("xid", "3", "48")
        await rig.wait_until(lambda: "xid" in rig.status(), "the fault in the status")
        await api.wait_quiet()
        status, text = rig.process.get("/readyz?verbose")
        assert status == 200, text
        assert {gate for gate in TOLD if gate in text} == api.dropped, text
