# SPDX-License-Identifier: Apache-2.0
"""Claims of all kinds come and go, on eight GPUs side by side: nothing grows, nothing is left.

A usual run has some hundred claims, `--soak` 20,000, and looks at the plugin's memory as well.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.hardware.gpu_modes import gpu_instances, is_in_mig_mode, time_slice
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

GATES = "--feature-gates=DynamicMIG=true,TimeSlicingSettings=true"
GPUS = range(8)
CLAIMS, SOAKED_CLAIMS = 320, 20_000
SETTLED_AFTER = 2_000
"""Memory is compared with that after so many claims."""
MOST_GROWTH = 1.05
IN_TURNS = plugin.shared_by_time("Medium")


@dataclass(frozen=True)
class Leftovers:
    """What claims could leave behind, in the process and on the node."""

    descriptors: int
    threads: int
    files: frozenset[str]
    records: frozenset[str]
    hardware: tuple[Any, ...]


@pytest.mark.timeout(5400)
async def test_claims_that_come_and_go_leave_nothing_behind(
    rig: Rig, request: pytest.FixtureRequest
) -> None:
    is_soak = bool(request.config.getoption("--soak"))
    await rig.start(GATES)
    await churn(rig, SETTLED_AFTER if is_soak else CLAIMS // 2)
    before, sockets = await at_rest(rig), len(descriptors(rig, "socket:"))
    settled = rig.process.resident_mib()
    await churn(rig, SOAKED_CLAIMS - SETTLED_AFTER if is_soak else CLAIMS // 2)
    assert await at_rest(rig) == before
    # The API server closes connections, and as many as are used at once are opened again.
    assert len(descriptors(rig, "socket:")) <= sockets + len(GPUS)
    if is_soak:
        assert rig.process.resident_mib() <= settled * MOST_GROWTH


async def churn(rig: Rig, claims: int) -> None:
    """Prepare and unprepare so many claims, on all GPUs side by side."""
    async with asyncio.TaskGroup() as group:
        for gpu in GPUS:
            group.create_task(churn_on(rig, gpu, claims // len(GPUS)))


async def churn_on(rig: Rig, gpu: int, claims: int) -> None:
    """Prepare and unprepare claims of all kinds on one GPU."""
    kinds: list[tuple[list[str], dict[str, Any]]] = [
        ([f"gpu-{gpu}"], {}),
        ([f"gpu-{gpu}-mig-1g10gb-19-{gpu % 7}"], {}),
        ([f"gpu-{gpu}"], {"config": IN_TURNS}),
        ([f"gpu-{gpu}-mig-3g40gb-9-{start}" for start in (0, 4)], {}),
        ([f"gpu-{gpu}"], {"admin": True}),
    ]
    for devices, how in islice((kinds * claims), gpu, gpu + claims):
        claim = await asyncio.to_thread(rig.create_claim, *devices, **how)
        for call in (rig.dra.prepare, rig.dra.unprepare):
            answer = (await call([claim], timeout_s=60))[claim.uid]
            assert not answer.error, answer.error
        await asyncio.to_thread(rig.delete_claim, claim)


async def at_rest(rig: Rig) -> Leftovers:
    """What is there once nothing changes any more."""
    found = await asyncio.to_thread(leftovers, rig)
    while (again := await asyncio.to_thread(leftovers, rig)) != found:
        found = again
    return found


def descriptors(rig: Rig, kind: str) -> list[str]:
    """What the plugin's descriptors of this kind are open for."""
    found = []
    for each in Path(f"/proc/{rig.process.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since they were listed
            found.append(str(each.readlink()))
    return [name for name in found if name.startswith(kind)]


def leftovers(rig: Rig) -> Leftovers:
    """What is there now."""
    process = Path(f"/proc/{rig.process.process.pid}")
    roots = (rig.plugin_dir, rig.node.cdi)
    return Leftovers(
        descriptors=len(descriptors(rig, "")) - len(descriptors(rig, "socket:")),
        threads=len(list((process / "task").iterdir())),
        files=frozenset(str(path) for root in roots for path in root.rglob("*")),
        records=frozenset(rig.recorded_claims()),
        hardware=(
            gpu_instances(rig.node),
            [is_in_mig_mode(rig.node, gpu) for gpu in GPUS],
            [time_slice(rig.node, gpu) for gpu in GPUS],
        ),
    )
