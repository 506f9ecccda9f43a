from uuid import NAMESPACE_DNS, uuid5

import pytest
from nvdra_sim import clusters, config
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


def test_nodes_of_one_rack_share_a_cluster_uuid_and_differ_in_tray():
    first, second, third, _ = clusters.load(CLUSTER)
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


def test_a_clique_is_given_per_node_and_else_the_profiles():
    cliques = [{gpu.fabric.clique_id for gpu in node.gpus} for node in clusters.load(CLUSTER)]
    assert cliques == [{7}, {7}, {2}, {0}]


def test_defaults_hold_for_every_node():
    nodes = clusters.load(CLUSTER)
    assert [node.name for node in nodes] == ["a-0", "a-1", "b-0", "c-0"]
    assert {node.driver.version for node in nodes} == {"575.57.08"}
    assert len(nodes[3].gpus) == 1


def test_gpus_of_different_nodes_have_different_uuids():
    uuids = [gpu.uuid for node in clusters.load(CLUSTER) for gpu in node.gpus]
    assert len(set(uuids)) == len(uuids) == 13


def test_a_cluster_becomes_files_that_load_by_themselves():
    files = clusters.expand(CLUSTER)
    assert tuple(config.load(file) for file in files) == clusters.load(CLUSTER)


def test_an_unknown_rack_and_a_repeated_name_are_refused():
    nodes = [{"name": "x", "profile": "t4", "rack": "z"}, {"name": "x", "profile": "t4"}]
    with pytest.raises(ConfigError) as caught:
        clusters.expand({**CLUSTER, "nodes": nodes})
    assert [problem.path for problem in caught.value.problems] == ["nodes.0.rack", "nodes.1.name"]
