# SPDX-License-Identifier: Apache-2.0
"""A claim's domain is read by its name if the claim says it, and searched for otherwise."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import FaultyProxy
from nvdra_testing.node.domain_rig import DomainRig

LISTS = r"GET .*/computedomains\?limit=[0-9]+$"
"""The first page of each list: other tests have left domains, too many for one page."""


@pytest_asyncio.fixture
async def proxy(rig: DomainRig) -> AsyncIterator[FaultyProxy]:
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as running:
        await rig.start(f"--kubeconfig={running.kubeconfig}")
        yield running


def gets(proxy: FaultyProxy, domain: Json) -> int:
    metadata = domain["metadata"]
    path = domain_objects.domains_path(metadata["namespace"], metadata["name"])
    return proxy.count(f"GET {path}$")


async def test_a_domain_that_its_claims_name_is_read_once_and_never_searched_for(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    assert gets(proxy, domain) == 1
    rig.write_clique_entry(domain, podUID=rig.pod_uid(daemon))
    claim = rig.create_channel_claim(domain)
    assert not (await rig.prepare(claim)).error
    assert proxy.count(LISTS) == 0


async def test_the_domain_of_claims_without_annotations_is_searched_for(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    assert not (await rig.prepare(rig.create_daemon_claim(domain, claim_annotations={}))).error
    assert proxy.count(LISTS) == 2, "in the claim's namespace, then in all"
    assert gets(proxy, domain) == 1


async def test_after_a_restart_a_waiting_claims_domain_is_read_by_its_name(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain, annotations={})
    assert (await rig.refusal(claim)).startswith("DaemonNotReady: ")
    await rig.stop()
    before = proxy.count(LISTS)
    await rig.start(f"--kubeconfig={proxy.kubeconfig}")
    assert (await rig.refusal(claim)).startswith("DaemonNotReady: ")
    assert proxy.count(LISTS) == before


@pytest.mark.parametrize(
    "name", ["another-domain", "there-is-none", "", "../../../../../api/v1/secrets", "x" * 5000]
)
async def test_a_claim_with_a_wrong_name_gets_its_own_domain(
    rig: DomainRig, proxy: FaultyProxy, name: str
) -> None:
    domain = rig.create_domain("Single")
    path = domain_objects.domains_path(domain["metadata"]["namespace"])
    generous = {**domain["spec"]["channel"], "allocationMode": "All"}
    rig.server.create(path, domain_objects.domain("another-domain", channel=generous))
    said = domain_objects.claim_annotations(domain, name=name)
    claim = rig.create_channel_claim(domain, "All", annotations=said)
    waiting = rig.start_prepare(claim)
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the label")
    assert proxy.count(f"GET {path}/another-domain$") == (1 if name == "another-domain" else 0)
    assert proxy.count(".*(secrets|x{99})") == 0
    assert proxy.count(LISTS) == 1
    await rig.make_daemon_ready(domain)
    assert not (await waiting).error
    (device,) = rig.claim_cdi_spec(claim)["devices"]
    assert len(device["containerEdits"]["deviceNodes"]) == 1, "its own domain allows one channel"


async def test_a_claim_that_names_another_namespace_is_refused_as_without_the_name(
    rig: DomainRig, proxy: FaultyProxy
) -> None:
    domain, stranger = rig.create_domain(), domain_objects.create_namespace(rig.server)
    claim = rig.create_channel_claim(domain, namespace=stranger)
    answer = await rig.prepare(claim, timeout_s=6)
    assert answer.error.startswith("NamespaceMismatch: "), answer.error
    assert proxy.count(LISTS) == 2, "it is found by its UID"
    assert gets(proxy, domain) == 1, "and only then read"
    assert rig.node_label() == ""
    assert rig.recorded_claims() == {}
