# SPDX-License-Identifier: Apache-2.0
"""A workload's claim, from the label of its node to its channels, and back."""

import asyncio
import time
from typing import Any

import pytest
from nvdra_sim.filesystem import procfs
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node.domain_rig import CLIQUE, DomainRig, cdi_names

VENDOR = "k8s.compute-domain.nvidia.com"


def nodes(spec: Any) -> list[str]:
    (device,) = spec["devices"]
    return [node["path"] for node in device["containerEdits"]["deviceNodes"]]


async def test_the_node_offers_one_channel_and_one_daemon(rig: DomainRig) -> None:
    await rig.start()
    told = {name: device["attributes"] for name, device in rig.devices().items()}
    assert told == {
        "channel-0": {"type": {"string": "channel"}, "id": {"int": 0}},
        "daemon-0": {"type": {"string": "daemon"}, "id": {"int": 0}},
    }


async def test_a_workload_waits_for_the_daemon_that_its_own_claim_starts(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the node's label")

    daemon = rig.create_daemon_claim(domain)
    answer = await rig.prepare(daemon)
    assert cdi_names(answer) == [f"{VENDOR}/device=all", f"{VENDOR}/claim={daemon.uid}-daemon-0"]
    rig.write_clique_entry(domain, "NotReady", podUID=rig.pod_uid(daemon), message="starts")
    rig.write_clique_entry(domain, "NotReady", node="node-z", index=1)
    await asyncio.sleep(0.3)
    assert not waiting.done()

    rig.write_clique_entry(domain, podUID=rig.pod_uid(daemon))
    answer = await waiting
    assert not answer.error, answer.error
    assert cdi_names(answer) == [f"{VENDOR}/claim={claim.uid}-channel-0"]
    spec = rig.claim_cdi_spec(claim)
    assert spec["kind"] == f"{VENDOR}/claim"
    (node,) = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert node["path"] == "/dev/nvidia-caps-imex-channels/channel0"
    assert (node["type"], node["fileMode"], "minor" in node) == ("c", 0o666, False)

    assert await rig.unprepare(claim) == ""
    assert rig.node_label() == ""
    assert rig.claim_cdi_spec(claim) == {}


async def test_a_daemon_gets_its_domain_and_what_imex_opens(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_daemon_claim(domain)
    answer = await rig.prepare(claim)
    assert not answer.error, answer.error
    edits = rig.claim_cdi_spec(claim)["devices"][0]["containerEdits"]
    uid, metadata = domain["metadata"]["uid"], domain["metadata"]
    assert edits["env"] == [
        f"CLIQUE_ID={CLIQUE}",
        f"COMPUTE_DOMAIN_UUID={uid}",
        "COMPUTE_DOMAIN_NAME=ring",
        f"COMPUTE_DOMAIN_NAMESPACE={metadata['namespace']}",
    ]
    (mount,) = edits["mounts"]
    assert mount["containerPath"] == "/imexd"
    directory = rig.plugin_dir / "domains" / uid
    assert mount["hostPath"] == str(directory)
    assert "{{ .IMEXDaemonNodesConfigPath }}" in (directory / "imexd.cfg.tmpl").read_text()
    (node,) = edits["deviceNodes"]
    assert node["path"] == f"/dev/nvidia-caps/nvidia-cap{procfs.FABRIC_IMEX_CAP}"
    assert node["fileMode"] == 0o400
    base = (rig.node.cdi / f"{VENDOR}-device_base.yaml").read_text()
    assert "nvidia-imex-ctl" in base
    assert "/dev/nvidiactl" in base
    assert "nvidia-uvm" not in base
    assert "imex-channels" not in base


@pytest.mark.parametrize(
    ("of_domain", "asked", "count"),
    [("Single", "All", 1), ("All", "All", 2048), ("All", "Single", 1)],
)
async def test_a_claim_gets_as_many_channels_as_its_domain_allows(
    rig: DomainRig, of_domain: str, asked: str, count: int
) -> None:
    await rig.start()
    domain = rig.create_domain(of_domain)
    await rig.make_daemon_ready(domain)
    claim = rig.create_channel_claim(domain, asked)
    answer = await rig.prepare(claim)
    assert not answer.error, answer.error
    assert len(nodes(rig.claim_cdi_spec(claim))) == count


async def _wait_labelled(rig: DomainRig, uid: str) -> None:
    await rig.poll_until(lambda: rig.node_label() == uid, "the label")


async def test_a_wait_ends_within_half_a_second_of_readiness(rig: DomainRig) -> None:
    await rig.start()
    took: list[float] = []
    for _ in range(3):
        domain = rig.create_domain()
        claim = rig.create_channel_claim(domain)
        waiting = rig.start_prepare(claim)
        await _wait_labelled(rig, domain["metadata"]["uid"])
        daemon = rig.create_daemon_claim(domain)
        assert not (await rig.prepare(daemon)).error
        rig.write_clique_entry(domain, "NotReady", podUID=rig.pod_uid(daemon))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(rig.write_clique_entry, domain, podUID=rig.pod_uid(daemon))
        said = time.monotonic()
        assert not (await waiting).error
        took.append(time.monotonic() - said)
        assert await rig.unprepare(claim) == ""
        assert await rig.unprepare(daemon) == ""
    assert min(took) < 0.5, took


async def test_a_channel_in_use_is_waited_for(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    first, second = rig.create_channel_claim(domain), rig.create_channel_claim(domain)
    assert not (await rig.prepare(first)).error
    text = await rig.refusal(second)
    assert text.startswith("DeviceInUse: channel-0 is held by claim")
    waiting = rig.start_prepare(second)
    await asyncio.sleep(0.3)
    assert await rig.unprepare(first) == ""
    assert not (await waiting).error
    assert rig.node_label() == domain["metadata"]["uid"]


async def test_a_repeated_prepare_answers_the_same_and_restores_files(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    first = [cdi_names(await rig.prepare(each)) for each in (daemon, claim)]
    before = rig.claim_cdi_spec(claim)
    for path in rig.node.cdi.glob("*.yaml"):
        path.unlink()
    (rig.plugin_dir / "domains" / domain["metadata"]["uid"] / "imexd.cfg.tmpl").unlink()
    assert [cdi_names(await rig.prepare(each)) for each in (daemon, claim)] == first
    assert rig.claim_cdi_spec(claim) == before
    assert rig.claim_cdi_spec(daemon)
    assert (rig.plugin_dir / "domains" / domain["metadata"]["uid"] / "imexd.cfg.tmpl").exists()


@pytest.mark.parametrize("rig", ["dgx-h100"], indirect=True)
async def test_without_fabric_a_workload_starts_without_channels(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the node's label")
    daemon = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(daemon)).error
    edits = rig.claim_cdi_spec(daemon)["devices"][0]["containerEdits"]
    assert edits["env"][0] == "CLIQUE_ID="
    assert "deviceNodes" not in edits
    rig.write_pod_ip(daemon, "10.0.0.1")
    path = f"/apis/resource.nvidia.com/v1beta1/namespaces/{claim.namespace}/computedomains/ring"
    stored = rig.server.request("GET", path)
    member = {"name": rig.node.name, "ipAddress": "10.0.0.1", "cliqueID": "", "index": -1}
    stored["status"] = {"status": "Ready", "nodes": [{**member, "status": "Ready"}]}
    rig.server.request("PUT", f"{path}/status", stored)
    answer = await waiting
    assert not answer.error, answer.error
    assert cdi_names(answer) == []
    assert rig.claim_cdi_spec(claim) == {}


@pytest.mark.parametrize("rig", ["dgx-h100"], indirect=True)
async def test_a_driver_too_old_for_dns_names_is_accepted_without_fabric(rig: DomainRig) -> None:
    driver_installation.install_driver(rig.node, version="550.90.07")
    await rig.start()
    assert set(rig.devices()) == {"channel-0", "daemon-0"}
