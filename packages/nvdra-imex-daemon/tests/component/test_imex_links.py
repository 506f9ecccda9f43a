# SPDX-License-Identifier: Apache-2.0
"""Connections of a READY nvidia-imex that do not come about are in the pod's annotation."""

import json
import os
import signal
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.ids import CliqueID
from nvdra_runtime.computedomain import imex_links, node_clique
from nvdra_testing.node.imex_daemons import DaemonPod, Rack

TWO = ("node-a", "node-b")
LOOKS_S = 40.0
"""Two looks of a small domain."""
LOOKED = "Looked at the connections"


def annotation(rack: Rack, pod: DaemonPod) -> dict[str, Any]:
    """What the pod's annotation says; empty if there is none."""
    annotations = stored(rack, pod)["metadata"].get("annotations", {})
    told: dict[str, Any] = json.loads(annotations.get(names.LINKS_ANNOTATION, "{}"))
    return told


def stored(rack: Rack, pod: DaemonPod) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{rack.namespace}/pods/{pod.name}"
    found: dict[str, Any] = rack.server.request("GET", path)
    return found


@pytest.mark.soak
def test_nodes_of_two_versions_are_ready_and_say_that_they_are_not_connected(rack: Rack) -> None:
    rack.install_driver(*TWO, node={"imex": {"mismatch_is_permanent": False}})
    rack.set_imex_faults("node-b", version="570.86.15")
    first, second = (rack.start_pod(node) for node in TWO)
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    mismatch = {"broken": {"node-b": "VERSION_MISMATCH"}}
    rack.wait_until(lambda: annotation(rack, first) == mismatch, "the first to say so", LOOKS_S)
    back = {"broken": {"node-a": "VERSION_MISMATCH"}}
    rack.wait_until(lambda: annotation(rack, second) == back, "the second to say so", LOOKS_S)
    assert rack.are_ready(*TWO)
    assert first.is_ready()
    assert first.status()["links"] == {"broken": {"node-b": "VERSION_MISMATCH"}, "failure": ""}

    version, looks = stored(rack, first)["metadata"]["resourceVersion"], first.log().count(LOOKED)
    rack.wait_until(lambda: first.log().count(LOOKED) > looks, "another look", LOOKS_S)
    assert stored(rack, first)["metadata"]["resourceVersion"] == version

    rack.set_imex_faults("node-b")
    (imex,) = second.imex_pids()
    os.kill(imex, signal.SIGKILL)  # the other one may connect to a new process only
    rack.wait_until(lambda: annotation(rack, first) == {}, "it to be well again", LOOKS_S)


def test_a_member_whose_command_port_is_closed_is_unavailable(rack: Rack) -> None:
    rack.install_driver(*TWO)
    first = rack.start_pod("node-a")
    elsewhere = "IMEX_CMD_BIND_INTERFACE_IP=127.0.0.1"
    own = "IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}"
    rack.template = rack.template.replace(own, elsewhere)
    rack.start_pod("node-b")
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    closed = {"broken": {"node-b": "UNAVAILABLE"}}
    rack.wait_until(lambda: annotation(rack, first) == closed, "the first to say so", LOOKS_S)


@pytest.mark.soak
def test_a_question_that_hangs_is_told_and_harms_nothing_else(rack: Rack) -> None:
    rack.install_driver(*TWO, node={"imex": {"ctl_patience_ms": 0}})
    pods = [rack.start_pod(node) for node in TWO]
    rack.wait_until(lambda: rack.are_ready(*TWO), "both to be Ready")
    rack.set_imex_faults("node-b", nodes_hang=True)
    told_after_s = LOOKS_S + 2 * imex_links.NODES_TIMEOUT_S
    first, second = pods
    rack.wait_until(lambda: annotation(rack, first), "the failure", told_after_s)
    rack.wait_until(lambda: annotation(rack, second), "the other's", told_after_s)
    for pod in pods:
        assert "gave no answer within" in annotation(rack, pod)["failure"]
    assert rack.are_ready(*TWO)
    assert all(pod.is_ready() for pod in pods)


def test_gpus_that_have_left_the_daemons_clique_are_told(rack: Rack) -> None:
    rack.install_driver("node-a")
    pod = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.are_ready("node-a"), "it to be Ready")
    file = pod.imexd / node_clique.FILE
    file.write_bytes(node_clique.content(CliqueID("c.5")))
    rack.wait_until(lambda: annotation(rack, pod) == {"nodeClique": "c.5"}, "the other clique")
    assert rack.are_ready("node-a")
    file.write_bytes(node_clique.content(CliqueID(rack.clique_id)))
    rack.wait_until(lambda: annotation(rack, pod) == {}, "it to be in its clique again")


def test_a_container_that_starts_again_says_nothing_of_its_predecessors_connections(
    rack: Rack,
) -> None:
    pod = rack.start_pod("node-a", clique="")
    rack.wait_until(pod.is_ready, "it to be ready")
    path = f"/api/v1/namespaces/{rack.namespace}/pods/{pod.name}"
    pod.stop()
    left = stored(rack, pod)
    left["metadata"]["annotations"] = {names.LINKS_ANNOTATION: '{"broken":{"node-b":"INVALID"}}'}
    rack.server.request("PUT", path, left)
    assert annotation(rack, pod)
    rack.run_daemon("node-a", pod.name, pod.uid, clique="")
    rack.wait_until(lambda: not annotation(rack, pod), "the annotation to go")
