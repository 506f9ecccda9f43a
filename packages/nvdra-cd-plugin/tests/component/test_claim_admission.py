# SPDX-License-Identifier: Apache-2.0
"""Claims that are refused, each with its reason and without a change on the node."""

from typing import Any
from uuid import uuid4

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.node.domain_rig import DomainRig


async def refused(rig: DomainRig, claim: ClaimRef, reason: str) -> str:
    """What the kubelet is told; the node and its files are as they were."""
    answer = await rig.prepare(claim, timeout_s=6)
    assert answer.error.startswith(f"{reason}: "), answer.error
    assert rig.node_label() == ""
    assert rig.claim_cdi_spec(claim) == {}
    assert not (rig.plugin_dir / "domains").exists()
    assert rig.recorded_claims() == {}
    return str(answer.error)


async def test_a_claim_of_another_namespace_than_its_domain(rig: DomainRig) -> None:
    await rig.start()
    domain, stranger = rig.create_domain(), domain_objects.create_namespace(rig.server)
    claim = rig.create_channel_claim(domain, namespace=stranger)
    said = await refused(rig, claim, "NamespaceMismatch")
    assert domain["metadata"]["namespace"] not in said


async def test_a_claim_of_a_domain_that_is_not_there(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    gone = {"metadata": {**domain["metadata"], "uid": str(uuid4())}}
    said = await refused(rig, rig.create_channel_claim(gone), "DomainNotFound")
    assert gone["metadata"]["uid"] in said


async def test_a_domain_that_is_not_there_is_looked_for_in_all_namespaces_once(
    rig: DomainRig,
) -> None:
    await rig.start("-v=6")
    domain = rig.create_domain()
    gone = {"metadata": {**domain["metadata"], "uid": str(uuid4())}}
    claim = rig.create_channel_claim(gone, annotations={})

    def asked() -> int:
        return rig.process.log.read_text().count('resource="computedomains" ')

    counts: list[int] = []
    for _ in range(4):
        before = asked()
        await refused(rig, claim, "DomainNotFound")
        counts.append(asked() - before)
    assert counts == [2, 1, 1, 1]


async def test_a_claim_of_a_domain_that_is_being_deleted(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    path = domain_objects.domains_path(domain["metadata"]["namespace"], "ring")
    domain["metadata"]["finalizers"] = ["resource.nvidia.com/computeDomain"]
    rig.server.request("PUT", path, domain)
    rig.server.request("DELETE", path)
    assert f"{domain['metadata']['namespace']}/ring" in await refused(
        rig, rig.create_channel_claim(domain), "DomainNotFound"
    )
    stranger = domain_objects.create_namespace(rig.server)
    said = await refused(
        rig, rig.create_channel_claim(domain, namespace=stranger), "DomainNotFound"
    )
    assert "is being deleted" in said
    assert domain["metadata"]["namespace"] not in said


@pytest.mark.parametrize("text", ["../../x", "not-needed-for-test", "/etc"])
async def test_a_domain_id_that_is_no_uid_enters_no_path(rig: DomainRig, text: str) -> None:
    await rig.start()
    domain = rig.create_domain()
    for claim in (
        rig.create_channel_claim(domain, parameters={"domainID": text}),
        rig.create_daemon_claim(domain, parameters={"domainID": text}),
    ):
        said = await refused(rig, claim, "InvalidConfig")
        assert "config[0].opaque.parameters.domainID" in said
    assert sorted(path.name for path in rig.plugin_dir.parent.iterdir()) == [rig.driver]


async def test_an_unknown_field_is_named(rig: DomainRig) -> None:
    await rig.start()
    claim = rig.create_channel_claim(rig.create_domain(), parameters={"unexpectedField": "x"})
    said = await refused(rig, claim, "InvalidConfig")
    assert 'strict decoding error: unknown field "unexpectedField"' in said
    await rig.poll_until(lambda: rig.events("InvalidConfig"), "an Event")


async def test_a_daemons_claim_of_a_tenants_namespace(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_daemon_claim(domain, claim_namespace=domain["metadata"]["namespace"])
    said = await refused(rig, claim, "NamespaceMismatch")
    assert "compute-domain-daemon.nvidia.com" in said


@pytest.mark.parametrize("change", ["owner", "label", "no pod", "another pod"])
async def test_a_daemons_claim_of_another_pod_than_the_daemon(rig: DomainRig, change: str) -> None:
    await rig.start()
    domain = rig.create_domain()
    metadata: dict[str, Any] = {}
    if change == "owner":
        metadata["ownerReferences"] = []
    if change == "label":
        metadata["labels"] = {}
    claim = rig.create_daemon_claim(domain, **metadata)
    pods = f"/api/v1/namespaces/{rig.namespace}/pods"
    if change in ("no pod", "another pod"):
        (pod,) = rig.server.request("GET", pods)["items"]
        rig.server.request("DELETE", f"{pods}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        if change == "another pod":
            rig.create_daemon_pod(domain, name=pod["metadata"]["name"])
    await refused(rig, claim, "NotADaemon")


async def test_a_device_that_the_node_does_not_offer(rig: DomainRig) -> None:
    await rig.start()
    claim = rig.create_channel_claim(rig.create_domain(), device="channel-1")
    await refused(rig, claim, "UnknownDevice")


async def test_two_devices_in_one_claim(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain, device=("channel-0", "channel-0"))
    await refused(rig, claim, "InvalidConfig")
