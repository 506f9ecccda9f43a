# SPDX-License-Identifier: Apache-2.0
"""GPUs that fail alone: the others say which clique the node belongs to, and it is remembered."""

import pytest
from nvdra_runtime.computedomain import node_clique
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node.domain_rig import DomainRig

DEVICES = {"channel-0", "daemon-0"}
FAILURES = {
    "it is lost": ("gpu", "lose", "1"),
    "it has no handle": (
        *("fault", "add", "nvmlDeviceGetHandleByIndex_v2", "--gpu", "1"),
        *("--result", "unknown"),
    ),
}


def readiness(rig: DomainRig) -> str:
    return rig.process.get("/readyz?verbose")[1]


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_gpu_that_fails_leaves_the_node_in_its_clique(rig: DomainRig, failure: str) -> None:
    rig.node.simctl(*FAILURES[failure])
    await rig.start()
    assert set(rig.devices()) == DEVICES
    assert rig.clique in readiness(rig)
    assert "DeviceUnhealthy" in readiness(rig)
    await rig.poll_until(lambda: rig.events("DeviceUnhealthy"), "an Event of the Node")
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error


async def test_the_clique_of_this_boot_is_known_to_the_next_process(rig: DomainRig) -> None:
    """A GPU that was reset stays IN_PROGRESS until the fabric manager has it registered again."""
    await rig.start()
    await rig.stop()
    rig.node.simctl("fabric", "1", "--fabric-state", "in_progress")
    await rig.start()
    assert set(rig.devices()) == DEVICES
    await rig.poll_until(lambda: "FabricError" in readiness(rig), "the query")
    assert rig.process.get("/readyz")[0] == 200
    assert set(rig.devices()) == DEVICES
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error


@pytest.mark.parametrize("state", ["not_supported", "in_progress"])
async def test_a_daemon_learns_that_the_gpus_are_in_no_fabric_any_more(
    rig: DomainRig, state: str
) -> None:
    await rig.start()
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    directory = rig.domain_directory(domain)
    await rig.poll_until(lambda: node_clique.read(directory) == rig.clique, "the node's clique")
    await rig.stop()  # GPUs that are well are asked every 45 s, and at the start
    rig.node.simctl("fabric", "all", "--fabric-state", state)
    await rig.start()
    await rig.poll_until(lambda: node_clique.read(directory) == "", "no clique")
    await rig.poll_until(lambda: rig.events("FabricError"), "an Event of the Node")
    assert rig.process.get("/readyz")[0] == 200
    assert f"clique {rig.clique}, and now: FabricError" in readiness(rig)
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error


async def test_the_clique_of_an_earlier_boot_does_not_count(rig: DomainRig) -> None:
    await rig.start()
    await rig.stop()
    driver_installation.reboot(rig.node, profile="gb200-nvl72")
    rig.node.simctl("fabric", "all", "--fabric-state", "in_progress")
    await rig.start_without_ready(f"--namespace={rig.namespace}")
    await rig.poll_until(lambda: "FabricError" in readiness(rig), "the query")
    assert rig.process.get("/readyz")[0] == 503
    await rig.poll_until(lambda: rig.slices() and not rig.devices(), "an empty slice")
