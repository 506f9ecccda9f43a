# SPDX-License-Identifier: Apache-2.0
"""The cluster's name server is asked nothing by a domain that has formed."""

from collections.abc import Iterator

import pytest
from nvdra_api.ids import DomainUID
from nvdra_imex_daemon.configuration import dns_names
from nvdra_testing import name_server
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl, WaitTimeout
from nvdra_testing.name_server import FAMILIES, LOOKUP

QUIET_S = 10
"""Longer than nvidia-imex waits before it asks again for a name that nobody knows."""


@pytest.fixture
def led_here(rack: Cluster) -> Iterator[None]:
    """The cluster's DNS service leads to this machine."""
    system = rack.kubectl.in_namespace("kube-system")
    system.apply(endpoints(rack))
    yield
    system.delete("endpointslice", "counting")


def endpoints(cluster: Cluster) -> Json:
    """Where the cluster's DNS service leads to, which has no other endpoints."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "counting",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [cluster.host_address]}],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
    }


def test_a_formed_domain_asks_the_clusters_name_server_nothing(
    rack: Cluster, team: Kubectl, led_here: None
) -> None:
    places = len(rack.nodes())  # all but one stay empty
    with name_server.counting(rack.host_address) as asked:
        domain = Domain(rack, compute_domains.create_domain(team, "alone"))
        pod = compute_domains.channel_pod("p", compute_domains.template_name("alone"))
        team.apply(pod)
        team.wait_running("p", timeout_s=100)
        compute_domains.wait_ready(team, "alone", 1)
        (daemon,) = domain.daemons().values()
        asked.clear()
        with pytest.raises(WaitTimeout, match="for a question"):
            team.wait(lambda: None if asked else "none", "a question", QUIET_S)

        for name in dns_names.of_domain(DomainUID(domain.uid), "domain").all(places):
            for family in FAMILIES:
                rack.driver_namespace.exec(daemon, "python3", "-c", LOOKUP, name, str(int(family)))
                assert asked == [], (name, family)
        unknown = ["exec", daemon, "--", "python3", "-c", LOOKUP, "nobody-9999", "0"]
        assert rack.driver_namespace.run_unchecked(*unknown).returncode != 0
        assert asked, "the name server is the one that is asked"

    team.delete("pod", "p")
    team.delete("computedomain", "alone")
    domain.wait_gone()
    compute_domains.wait_released(rack)
