# SPDX-License-Identifier: Apache-2.0
from uuid import NAMESPACE_DNS, uuid5

import pytest
from nvdra_sim.configuration import cluster_config, node_config
from nvdra_sim.errors import ConfigError

CLUSTER = {
    "apiVersion": "nvdra.sim/v1",
    "kind": "Cluster",
    "metadata": {"name": "lab"},
    "defaults": {"driver": {"version": "575.57.08"}},
    "racks": [{"name": "a"}, {"name": "b", "cluster_uuid": "6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672"}],
    "nodes": [
        {"name": "a-0", "profile": "gb200-nvl72", "rack": "a", "clique": 7},
        {"name": "a-1", "profile": "gb200-nvl72", "rack": "a", "clique": 7},
        {"name": "b-0", "profile": "gb300-nvl72", "rack": "b"},
        {"name": "c-0", "profile": "t4", "overrides": {"gpu_count": 1}},
    ],
}


def test_nodes_of_one_rack_share_a_cluster_uuid_and_differ_in_tray() -> None:
    first, second, third, _ = cluster_config.load(CLUSTER)
    assert {gpu.fabric.cluster_uuid for node in (first, second) for gpu in node.gpus} == {
        uuid5(NAMESPACE_DNS, "lab/a")
    }
    assert {str(gpu.fabric.cluster_uuid) for gpu in third.gpus} == {
        "6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672"
    }
    places = [node.gpus[0].platform for node in (first, second, third)]
    assert all(place is not None for place in places)
    assert [place.tray for place in places if place] == [0, 1, 0]
    assert len({place.chassis_serial for place in places if place}) == 2


def test_a_clique_is_given_per_node_and_else_the_profiles() -> None:
    cliques = [{gpu.fabric.clique_id for gpu in node.gpus} for node in cluster_config.load(CLUSTER)]
    assert cliques == [{7}, {7}, {2}, {0}]


def test_defaults_hold_for_every_node() -> None:
    nodes = cluster_config.load(CLUSTER)
    assert [node.name for node in nodes] == ["a-0", "a-1", "b-0", "c-0"]
    assert {node.driver.version for node in nodes} == {"575.57.08"}
    assert len(nodes[3].gpus) == 1


def test_gpus_of_different_nodes_have_different_uuids() -> None:
    uuids = [gpu.uuid for node in cluster_config.load(CLUSTER) for gpu in node.gpus]
    assert len(set(uuids)) == len(uuids) == 13


def test_a_cluster_becomes_files_that_load_by_themselves() -> None:
    files = cluster_config.expand(CLUSTER)
    assert tuple(node_config.load(file) for file in files) == cluster_config.load(CLUSTER)


def test_an_unknown_rack_and_a_repeated_name_are_refused() -> None:
    nodes = [{"name": "x", "profile": "t4", "rack": "z"}, {"name": "x", "profile": "t4"}]
    with pytest.raises(ConfigError) as caught:
        cluster_config.expand({**CLUSTER, "nodes": nodes})
    assert [problem.path for problem in caught.value.problems] == ["nodes.0.rack", "nodes.1.name"]
