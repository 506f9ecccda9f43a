# SPDX-License-Identifier: Apache-2.0
"""Restarts of the plugin, a late fabric, a missing driver, and lost state."""

import json
import re
import shutil
import signal
import zlib
from typing import Any

import grpc
import pytest
from nvdra_testing.faults import api_proxy, small_disk
from nvdra_testing.node import plugin
from nvdra_testing.node.domain_rig import DomainRig, cdi_names


async def test_a_restart_keeps_prepared_claims(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    before = [cdi_names(await rig.prepare(each)) for each in (daemon, claim)]
    await rig.stop()
    await rig.start()
    assert [cdi_names(await rig.prepare(each)) for each in (daemon, claim)] == before
    assert rig.node_label() == domain["metadata"]["uid"]
    assert await rig.unprepare(claim) == ""
    assert rig.node_label() == ""


async def test_a_claim_that_waited_during_a_kill_waits_again_or_is_unprepared(
    rig: DomainRig,
) -> None:
    await rig.start()
    first, second = rig.create_domain(), rig.create_domain()
    claim = rig.create_channel_claim(first)
    assert (await rig.refusal(claim)).startswith("DaemonNotReady: ")
    await rig.stop(signal.SIGKILL)
    await rig.start()
    await rig.make_daemon_ready(first)
    assert not (await rig.prepare(claim)).error
    assert await rig.unprepare(claim) == ""

    other = rig.create_channel_claim(second)
    assert (await rig.refusal(other)).startswith("DaemonNotReady: ")
    await rig.stop(signal.SIGKILL)
    await rig.start()
    assert await rig.unprepare(other) == ""
    assert rig.node_label() == ""


async def test_the_member_span_of_an_interrupted_wait_is_written_when_it_ends(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    claim = rig.create_channel_claim(domain)
    waiting = rig.start_prepare(claim)
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the node's label")
    await rig.stop(signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError):
        await waiting
    await rig.start()
    assert rig.domain_span_names(domain) == []
    assert await rig.unprepare(claim) == ""
    assert rig.domain_span_names(domain) == ["member"]


async def test_stale_files_are_removed_at_the_start(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon = await rig.make_daemon_ready(domain)
    kept = rig.plugin_dir / "domains" / domain["metadata"]["uid"]
    await rig.stop()
    left = kept.with_name("99999999-2222-3333-4444-555555555555")
    left.mkdir()
    spec = next(rig.node.cdi.glob(f"*claim_{daemon.uid}.yaml"))
    orphan = spec.with_name(spec.name.replace(daemon.uid, left.name))
    shutil.copy(spec, orphan)
    await rig.start()
    await rig.poll_until(
        lambda: not left.exists() and not orphan.exists(), "what is left over to go"
    )
    assert kept.exists()
    assert spec.exists()


async def test_the_checkpoint_of_the_reference_driver_stays_until_its_last_claim_is_unprepared(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    answers = {each: await rig.prepare(each) for each in (daemon, claim)}
    await rig.stop()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"")
    _checkpoint(rig, answers)
    left = rig.plugin_dir / "checkpoint.json"
    prepared = {claim.uid: {"checkpointState": "PrepareCompleted", "status": {}}}
    left.write_text(json.dumps({"checksum": 1, "v1": {}, "v2": {"preparedClaims": prepared}}))
    stale = rig.plugin_dir / "domains" / "99999999-2222-3333-4444-555555555555"
    stale.mkdir()
    await rig.start()
    await rig.poll_until(lambda: not stale.exists(), "the look at what is left over")
    assert set(rig.recorded_claims()) == {daemon.uid, claim.uid}
    assert left.exists()

    assert await rig.unprepare(claim) == ""
    await rig.poll_until(lambda: not left.exists(), "the checkpoint to go")
    assert set(rig.recorded_claims()) == {daemon.uid}


async def test_lost_records_are_recovered_from_the_checkpoint(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    answers = {each: await rig.prepare(each) for each in (daemon, claim)}
    await rig.stop()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"")
    _checkpoint(rig, answers)
    await rig.start()
    for each, answer in answers.items():
        assert cdi_names(await rig.prepare(each)) == cdi_names(answer)
    assert rig.node_label() == domain["metadata"]["uid"]
    assert await rig.unprepare(claim) == ""
    assert rig.node_label() == ""


async def test_records_are_recovered_once_compute_domains_are_served(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    daemon, claim = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    answers = {each: await rig.prepare(each) for each in (daemon, claim)}
    await rig.stop()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"")
    _checkpoint(rig, answers)
    async with api_proxy.run_proxy(rig.server, rig.node.kubelet.parent) as proxy:
        body = "404 page not found\n"
        with proxy.inject(r"GET .*/computedomains", status=404, body=body) as fault:
            flags = f"--namespace={rig.namespace}", f"--kubeconfig={proxy.kubeconfig}"
            rig.process = rig.launch(*flags)
            await rig.poll_until(lambda: fault.hits > 2, "the plugin to ask again")
            assert not rig.recorded_claims()
        await rig.poll_until(
            lambda: set(rig.recorded_claims()) == {daemon.uid, claim.uid}, "the records"
        )
        assert all(domain["metadata"]["uid"] in record for record in rig.recorded_claims().values())


async def test_no_device_is_given_while_prepared_claims_are_unknown(rig: DomainRig) -> None:
    await rig.start()
    await rig.stop()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"damaged")
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    answer = await rig.prepare(rig.create_channel_claim(rig.create_domain()), timeout_s=6)
    assert answer.error.startswith("StateCorrupt: "), answer.error


async def test_a_late_fabric_is_reported_and_then_used(rig: DomainRig) -> None:
    rig.node.simctl("fabric", "all", "--fabric-state", "in_progress")
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await rig.poll_until(
        lambda: "[-]fabric failed: FabricError" in rig.process.get("/readyz?verbose")[1],
        "the plugin to say that the fabric is late",
    )
    await rig.poll_until(lambda: rig.slices() and not rig.devices(), "an empty slice")
    await rig.poll_until(lambda: rig.events("FabricError"), "an Event of the Node")
    domain = rig.create_domain()
    text = await rig.refusal(rig.create_daemon_claim(domain))
    assert text.startswith("FabricError: "), text

    rig.node.simctl("fabric", "all", "--fabric-state", "completed")
    await rig.poll_until(lambda: set(rig.devices()) == {"channel-0", "daemon-0"}, "the devices")
    await rig.make_daemon_ready(domain)
    counted = {
        state: line.rpartition(" ")[2]
        for line in rig.process.get("/metrics")[1].splitlines()
        for state in ("healthy", "unhealthy")
        if line.startswith("nvdra_devices{") and f'state="{state}"' in line and "channel" in line
    }
    assert counted == {"healthy": "1.0", "unhealthy": "0.0"}
    assert not (await rig.prepare(rig.create_channel_claim(domain))).error


async def test_a_missing_driver_is_reported_and_used_once_installed(rig: DomainRig) -> None:
    library = next(rig.node.roots.driver.rglob("libnvidia-ml.so.1"))
    away = library.with_name("away")
    library.rename(away)
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    await rig.poll_until(
        lambda: "DriverMismatch" in rig.process.get("/readyz?verbose")[1], "the missing driver"
    )
    away.rename(library)
    await rig.poll_until(lambda: set(rig.devices()) == {"channel-0", "daemon-0"}, "the devices")
    text = rig.process.log.read_text()
    (version,) = re.findall(r"The driver's IMEX finds its peers by name driver=\"([\d.]+)\"", text)
    assert f" {version} " in (rig.node.roots.proc / "driver/nvidia/version").read_text()


async def test_a_driver_without_imex_channels_is_reported_at_prepare(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    await rig.make_daemon_ready(domain)
    devices = rig.node.roots.proc / "devices"
    devices.write_text(devices.read_text().replace("nvidia-caps-imex-channels", "something"))
    answer = await rig.prepare(rig.create_channel_claim(domain))
    assert answer.error.startswith("DeviceNodeMissing: "), answer.error


async def test_an_unwritable_spec_directory_is_reported(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.create_domain()
    directory = rig.plugin_dir / "domains"
    directory.write_text("in the way")
    answer = await rig.prepare(rig.create_daemon_claim(domain))
    assert answer.error.startswith("StateUnavailable: "), answer.error
    directory.unlink()
    assert not (await rig.prepare(rig.create_daemon_claim(rig.create_domain()))).error


async def test_a_full_disk_refuses_new_claims_only_and_until_there_is_space(
    rig: DomainRig,
) -> None:
    disk = rig.stack.enter_context(small_disk.mount_small_disk(rig.plugin_dir))
    await rig.start()
    domain = rig.create_domain()
    held, new = await rig.make_daemon_ready(domain), rig.create_channel_claim(domain)
    before = cdi_names(await rig.prepare(held))
    disk.fill()
    assert (await rig.prepare(new)).error.startswith("StateUnavailable: ")
    assert (await rig.unprepare(held)).startswith("StateUnavailable: ")
    assert cdi_names(await rig.prepare(held)) == before
    assert "full" in rig.process.get("/readyz?verbose")[1]
    disk.clear()
    assert cdi_names(await rig.prepare(new))
    assert [await rig.unprepare(each) for each in (new, held)] == ["", ""]


async def test_nvml_that_hangs_delays_only_claims(rig: DomainRig) -> None:
    rig.node.simctl("slow", "60000", "--function", "nvmlInitWithFlags")
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    answer = await rig.prepare(rig.create_daemon_claim(rig.create_domain()), timeout_s=5)
    assert answer.error.startswith("DeadlineExceeded: "), answer.error


def _checkpoint(rig: DomainRig, answers: Any) -> None:
    """The kubelet's record of what it was answered."""
    claims = [
        {
            "ClaimUID": claim.uid,
            "ClaimName": claim.name,
            "Namespace": claim.namespace,
            "PodUIDs": {rig.pod_uid(claim): {}},
            "DriverState": {
                rig.driver: {
                    "Devices": [
                        {
                            "PoolName": device.pool_name,
                            "DeviceName": device.device_name,
                            "RequestNames": list(device.request_names),
                            "CDIDeviceIDs": list(device.cdi_device_ids),
                        }
                        for device in answer.devices
                    ]
                }
            },
        }
        for claim, answer in answers.items()
    ]
    data = json.dumps(
        {"apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": claims}
    )
    document = {"Data": data, "Checksum": zlib.crc32(data.encode())}
    (rig.node.kubelet / "dra_manager_state").write_text(json.dumps(document))
