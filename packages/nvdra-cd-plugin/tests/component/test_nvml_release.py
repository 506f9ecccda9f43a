# SPDX-License-Identifier: Apache-2.0
"""NVML is released on the node, so that an administrator can work on its GPUs.

The GPU plugin carries out the request and writes `nvml-release.json`; here the test writes it. The
simulator refuses what the real driver refuses while a process has a session or a handle.
"""

import asyncio
from datetime import UTC, datetime

import pytest
from nvdra_cd_plugin.fabric.monitor import RETRY_INTERVAL_S
from nvdra_testing.faults import nvml_releases
from nvdra_testing.node.domain_rig import DomainRig

JOINING = ("fabric", "all", "--fabric-state", "in_progress")
"""While GPUs have not joined, the plugin opens NVML every few seconds."""
DEVICES = {"channel-0", "daemon-0"}


def readiness(rig: DomainRig) -> str:
    return rig.process.get("/readyz?verbose")[1]


async def test_nothing_of_nvml_is_used_while_it_is_released(rig: DomainRig) -> None:
    rig.node.simctl(*JOINING)
    await rig.start_without_ready(f"--namespace={rig.namespace}")
    await rig.poll_until(lambda: "FabricError" in readiness(rig), "the first query")
    nvml_releases.release(rig)
    await rig.poll_until(lambda: "NvmlReleased" in readiness(rig), "the release to be seen")
    assert "nvdra-gpu-plugin resume" in readiness(rig)
    before = rig.node.nvml_calls("nvmlInitWithFlags")
    claim = rig.create_daemon_claim(rig.create_domain())
    assert (await rig.refusal(claim)).startswith("NvmlReleased: ")
    await asyncio.sleep(2 * RETRY_INTERVAL_S)
    assert rig.node.nvml_calls("nvmlInitWithFlags") == before
    for operation in [("gpu", "reset", "0"), ("driver", "unload"), ("driver", "load")]:
        rig.node.simctl(*operation)
    rig.node.simctl("fabric", "all", "--fabric-state", "completed")
    nvml_releases.resume(rig)
    await rig.poll_until(lambda: set(rig.devices()) == DEVICES, "the devices")
    assert not (await rig.prepare(claim)).error


async def test_a_known_clique_is_kept_while_nvml_is_released_and_over_a_restart(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    before = [each["metadata"]["resourceVersion"] for each in rig.slices()]
    nvml_releases.release(rig)
    await rig.poll_until(lambda: "NvmlReleased" in readiness(rig), "the release to be seen")
    assert rig.process.get("/readyz")[0] == 200
    await rig.make_daemon_ready(domain)
    await rig.stop()
    calls = rig.node.nvml_calls("nvmlInitWithFlags")
    await rig.start()
    assert rig.clique in readiness(rig)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error
    assert rig.node.nvml_calls("nvmlInitWithFlags") == calls
    assert [each["metadata"]["resourceVersion"] for each in rig.slices()] == before


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetGpuFabricInfo*"])
async def test_a_query_that_hangs_ends_the_process_and_its_successor_does_not_query(
    rig: DomainRig, function: str
) -> None:
    rig.node.simctl(*JOINING)
    rig.node.simctl("slow", "-1", "--function", function)
    await rig.start_without_ready(f"--namespace={rig.namespace}")
    await rig.poll_until(lambda: "DeadlineExceeded" in readiness(rig), "the query to hang")
    nvml_releases.release(rig)
    assert await asyncio.to_thread(rig.process.process.wait, 45) == 0
    assert "A query hangs in NVML" in rig.process.log.read_text()
    await rig.kubelet.wait_deregistered(rig.driver)
    rig.node.simctl("gpu", "reset", "0")
    calls = rig.node.nvml_calls("nvmlInitWithFlags")
    await rig.start_without_ready(f"--namespace={rig.namespace}")
    await rig.poll_until(lambda: "NvmlReleased" in readiness(rig), "the release to be seen")
    assert rig.node.nvml_calls("nvmlInitWithFlags") == calls


async def test_a_release_whose_time_has_passed_is_over(rig: DomainRig) -> None:
    nvml_releases.release(rig, until=datetime(2026, 1, 1, tzinfo=UTC))
    await rig.start()
    assert set(rig.devices()) == DEVICES
