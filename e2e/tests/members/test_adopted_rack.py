# SPDX-License-Identifier: Apache-2.0
"""A rack with both reference drivers' claims and definitions gets ours while its pods run."""

import json
from functools import partial
from itertools import product

import pytest
from nvdra_api import names
from nvdra_testing.cluster import compute_domains, reference_node, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.control_plane import foreign_definitions

NAME = "ring"
NODES = ("node-1", "node-2")
DRIVERS = (names.COMPUTE_DOMAIN_DRIVER, names.GPU_DRIVER)
TAKE_OVER = "--set=nvdra-cd-controller.crds.install=always"


@pytest.mark.timeout(600, func_only=True)
def test_channels_gpus_and_definitions_of_both_reference_drivers_are_taken_over(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, NAME))
    team.apply(workloads.template("gpu", workloads.gpus("gpu")))
    for node in NODES:
        pod = workloads.pod(node, templates=[compute_domains.template_name(NAME), "gpu"])
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        team.apply(pod)
    team.wait_running(*NODES, timeout_s=150)
    compute_domains.wait_ready(team, NAME, len(NODES), 60)
    before, daemons = containers(team), domain.daemons()
    held = {node: workloads.claims_of(team, node) for node in NODES}
    uuids = {node: workloads.visible_gpus(team, node).uuids for node in NODES}
    rack.uninstall()
    for node, (of_channel, of_gpu) in held.items():
        reference_node.leave_channel_claims(rack, node, domain.uid, [of_channel])
        (result,) = of_gpu["status"]["allocation"]["devices"]["results"]
        (uuid,) = uuids[node]
        reference_node.leave_gpu_claims(rack, node, [of_gpu], {result["device"]: uuid})
    left = read(rack)
    for definition in (
        foreign_definitions.computedomains(),
        foreign_definitions.computedomaincliques(),
    ):
        rack.kubectl.run("replace", "-f", "-", text=json.dumps(definition))

    for settings in (rack_settings, [*rack_settings, TAKE_OVER]):
        rack.install(*settings)
        compute_domains.wait_ready(team, NAME, len(NODES), 60)
        assert containers(team) == before
        assert domain.daemons() == daemons
        for node in NODES:
            assert compute_domains.channels(team, node) == {"channel0"}
            assert workloads.visible_gpus(team, node).uuids == uuids[node]
        # Whoever goes back finds what the reference driver reads, and room for its sockets.
        rack.uninstall()
        assert read(rack) == left
        for node, driver in product(NODES, DRIVERS):
            assert reference_node.sockets(rack, node, driver) == []
        assert containers(team) == before
    rack.install(*rack_settings)

    team.delete("pod", *NODES)
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)
    for node, driver in product(NODES, DRIVERS):
        gone = partial(not_gone, rack, node, driver)
        rack.kubectl.wait(gone, f"what {driver} has left to be gone")


def containers(team: Kubectl) -> dict[str, tuple[str, int]]:
    """The container of each pod, and how often it was restarted."""
    found = {node: team.get("pod", node)["status"]["containerStatuses"][0] for node in NODES}
    return {node: (each["containerID"], each["restartCount"]) for node, each in found.items()}


def read(rack: Cluster) -> dict[tuple[str, str], dict[str, str]]:
    """What the plugins of the reference drivers would read on each node."""
    return {
        (node, driver): reference_node.what_is_read(rack, node, driver)
        for node, driver in product(NODES, DRIVERS)
    }


def not_gone(rack: Cluster, node: str, driver: str) -> str | None:
    """The files of a reference driver on a node; None if there are none."""
    return ", ".join(reference_node.leftovers(rack, node, driver)) or None
