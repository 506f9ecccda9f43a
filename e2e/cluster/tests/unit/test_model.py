# SPDX-License-Identifier: Apache-2.0
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_lab import model
from nvdra_lab.errors import LabError


def lab(index: int = 0, nodes: int = 2) -> model.Lab:
    return model.plan("lab", index, nodes, "dgx-h100", "1.36.3", {})


def networks(index: int) -> list[ipaddress.IPv4Network]:
    network = model.network(index)
    link = f"{network.address}/{network.prefix_length}"
    texts = (network.pod_cidr, network.service_cidr, link)
    return [ipaddress.IPv4Network(text, strict=False) for text in texts]


def test_every_node_has_an_address_and_a_pod_range_of_its_own_within_the_labs() -> None:
    planned = lab(index=3, nodes=model.MAX_NODES)
    network = planned.network
    link = ipaddress.ip_network(f"{network.address}/{network.prefix_length}", strict=False)
    pods = ipaddress.IPv4Network(network.pod_cidr)
    addresses = [ipaddress.ip_address(node.address) for node in planned.nodes]
    ranges = [ipaddress.IPv4Network(node.pod_cidr) for node in planned.nodes]

    assert all(address in link for address in addresses)
    assert all(pods.supernet_of(one) for one in ranges)
    taken = {network.address, network.host_address, *map(str, addresses)}
    assert len(taken) == model.MAX_NODES + 2
    assert len(set(ranges)) == model.MAX_NODES


@given(st.integers(0, model.MAX_LABS - 1), st.integers(0, model.MAX_LABS - 1))
def test_the_addresses_of_two_labs_never_overlap(one: int, other: int) -> None:
    overlap = any(a.overlaps(b) for a in networks(one) for b in networks(other))
    assert overlap == (one == other)


def test_the_kubernetes_service_is_the_first_address_of_the_service_range() -> None:
    network = model.network(5)
    first = next(ipaddress.ip_network(network.service_cidr).hosts())
    assert network.kubernetes_service == str(first)


def test_the_name_of_the_link_fits_the_kernel() -> None:
    assert all(len(model.network(index).link) <= 15 for index in range(model.MAX_LABS))


def test_a_new_lab_takes_the_first_index_that_no_lab_has() -> None:
    assert model.free_index({0, 1, 3}, []) == 2


def test_an_index_whose_range_the_host_routes_elsewhere_is_passed_over() -> None:
    assert model.free_index(set(), ["10.96.0.0/16", "10.129.7.0/24", "192.0.2.0/24"]) == 2


def test_a_machine_with_no_range_left_is_told_so() -> None:
    with pytest.raises(LabError, match="no address range is left"):
        model.free_index(set(), ["10.0.0.0/8"])


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "..", "a" * 21])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="--name"):
        model.check_name(name)


@pytest.mark.parametrize("name", ["a", "lab", "a-1", "a" * 20])
def test_a_short_dns_label_is_a_name(name: str) -> None:
    model.check_name(name)


@pytest.mark.parametrize("count", [0, -1, model.MAX_NODES + 1])
def test_a_number_of_nodes_that_has_no_addresses_is_refused(count: int) -> None:
    with pytest.raises(LabError, match="--nodes"):
        lab(nodes=count)


def test_asking_for_an_unknown_node_names_those_there_are() -> None:
    with pytest.raises(LabError, match="its nodes: node-1, node-2"):
        lab().node("node-3")


def test_what_was_decided_is_read_back_as_it_was_written() -> None:
    assert model.Lab.model_validate_json(lab().model_dump_json()) == lab()
