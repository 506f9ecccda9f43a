"""Restarts, a fabric that is late, a driver that is missing, state that is lost."""

import json
import re
import shutil
import signal
import zlib
from typing import Any

import grpc
import interposer
import pytest
import small_disk
from domain_rig import DomainRig, cdi_names


async def test_a_restart_keeps_what_was_given(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemon, claim = await rig.form(domain), rig.channel(domain)
    before = [cdi_names(await rig.prepare(each)) for each in (daemon, claim)]
    await rig.end()
    await rig.start()
    assert [cdi_names(await rig.prepare(each)) for each in (daemon, claim)] == before
    assert rig.label() == domain["metadata"]["uid"]
    assert await rig.unprepare(claim) == ""
    assert rig.label() == ""


async def test_a_claim_that_waited_over_a_kill_is_waited_for_again_or_let_go(
    rig: DomainRig,
) -> None:
    await rig.start()
    first, second = rig.domain(), rig.domain()
    claim = rig.channel(first)
    assert (await rig.prepare(claim, timeout_s=4)).error.startswith("DaemonNotReady: ")
    await rig.end(signal.SIGKILL)
    await rig.start()
    await rig.form(first)
    assert not (await rig.prepare(claim)).error
    assert await rig.unprepare(claim) == ""

    other = rig.channel(second)
    assert (await rig.prepare(other, timeout_s=4)).error.startswith("DaemonNotReady: ")
    await rig.end(signal.SIGKILL)
    await rig.start()
    assert await rig.unprepare(other) == ""
    assert rig.label() == ""


async def test_a_membership_whose_first_wait_was_cut_off_is_told_when_it_ends(
    rig: DomainRig,
) -> None:
    await rig.start()
    domain = rig.domain()
    claim = rig.channel(domain)
    waiting = rig.begin(claim)
    await rig.soon(lambda: rig.label() == domain["metadata"]["uid"], "the node's label")
    await rig.end(signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError):
        await waiting
    await rig.start()
    assert rig.told(domain) == []
    assert await rig.unprepare(claim) == ""
    assert rig.told(domain) == ["member"]


async def test_what_nobody_holds_is_cleared_away_at_the_start(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemon = await rig.form(domain)
    kept = rig.plugin_dir / "domains" / domain["metadata"]["uid"]
    await rig.end()
    left = kept.with_name("99999999-2222-3333-4444-555555555555")
    left.mkdir()
    spec = next(rig.node.cdi.glob(f"*claim_{daemon.uid}.yaml"))
    orphan = spec.with_name(spec.name.replace(daemon.uid, left.name))
    shutil.copy(spec, orphan)
    await rig.start()
    await rig.soon(lambda: not left.exists() and not orphan.exists(), "what is left over to go")
    assert kept.exists()
    assert spec.exists()


async def test_records_that_are_lost_are_taken_from_the_kubelet(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemon, claim = await rig.form(domain), rig.channel(domain)
    answers = {each: await rig.prepare(each) for each in (daemon, claim)}
    await rig.end()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"")
    _checkpoint(rig, answers)
    await rig.start()
    for each, answer in answers.items():
        assert cdi_names(await rig.prepare(each)) == cdi_names(answer)
    assert rig.label() == domain["metadata"]["uid"]
    assert await rig.unprepare(claim) == ""
    assert rig.label() == ""


async def test_records_are_taken_over_once_compute_domains_are_served(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    daemon, claim = await rig.form(domain), rig.channel(domain)
    answers = {each: await rig.prepare(each) for each in (daemon, claim)}
    await rig.end()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"")
    _checkpoint(rig, answers)
    async with interposer.interposed(rig.server, rig.node.kubelet.parent) as proxy:
        unknown = {"status": 404, "body": "404 page not found\n"}
        with proxy.spoiling(r"GET .*/computedomains", **unknown) as spoilage:
            flags = f"--namespace={rig.namespace}", f"--kubeconfig={proxy.kubeconfig}"
            rig.process = rig.launch(*flags)
            await rig.soon(lambda: spoilage.met > 2, "the plugin to ask again")
            assert not rig.held()
        await rig.soon(lambda: set(rig.held()) == {daemon.uid, claim.uid}, "the records")
        assert all(domain["metadata"]["uid"] in record for record in rig.held().values())


async def test_nothing_is_given_while_nobody_knows_what_is_held(rig: DomainRig) -> None:
    await rig.start()
    await rig.end()
    (rig.plugin_dir / "state.sqlite").write_bytes(b"damaged")
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.registered(rig.driver)
    answer = await rig.prepare(rig.channel(rig.domain()), timeout_s=6)
    assert answer.error.startswith("StateCorrupt: "), answer.error


async def test_a_fabric_that_is_late_is_told_and_then_used(rig: DomainRig) -> None:
    rig.node.sim("fabric", "all", "--fabric-state", "in_progress")
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.registered(rig.driver)
    await rig.soon(
        lambda: "[-]fabric failed: FabricError" in rig.process.get("/readyz?verbose")[1],
        "the plugin to say that the fabric is late",
    )
    await rig.soon(lambda: rig.slices() and not rig.devices(), "an empty slice")
    await rig.soon(lambda: rig.events("FabricError"), "an Event of the Node")
    domain = rig.domain()
    answer = await rig.prepare(rig.daemon(domain), timeout_s=4)
    assert answer.error.startswith("FabricError: "), answer.error

    rig.node.sim("fabric", "all", "--fabric-state", "completed")
    await rig.soon(lambda: set(rig.devices()) == {"channel-0", "daemon-0"}, "the devices")
    await rig.form(domain)
    counted = {
        state: line.rpartition(" ")[2]
        for line in rig.process.get("/metrics")[1].splitlines()
        for state in ("healthy", "unhealthy")
        if line.startswith("nvdra_devices{") and f'state="{state}"' in line and "channel" in line
    }
    assert counted == {"healthy": "1.0", "unhealthy": "0.0"}
    assert not (await rig.prepare(rig.channel(domain))).error


async def test_a_driver_that_is_missing_is_told_and_then_used(rig: DomainRig) -> None:
    library = next(rig.node.roots.driver.rglob("libnvidia-ml.so.1"))
    away = library.with_name("away")
    library.rename(away)
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.registered(rig.driver)
    await rig.soon(
        lambda: "DriverMismatch" in rig.process.get("/readyz?verbose")[1], "the missing driver"
    )
    away.rename(library)
    await rig.soon(lambda: set(rig.devices()) == {"channel-0", "daemon-0"}, "the devices")
    text = rig.process.log.read_text()
    (version,) = re.findall(r"The driver's IMEX finds its peers by name driver=\"([\d.]+)\"", text)
    assert f" {version} " in (rig.node.roots.proc / "driver/nvidia/version").read_text()


async def test_a_driver_without_imex_channels_is_told_at_prepare(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    await rig.form(domain)
    devices = rig.node.roots.proc / "devices"
    devices.write_text(devices.read_text().replace("nvidia-caps-imex-channels", "something"))
    answer = await rig.prepare(rig.channel(domain))
    assert answer.error.startswith("DeviceNodeMissing: "), answer.error


async def test_a_place_for_specs_that_cannot_be_written_is_told(rig: DomainRig) -> None:
    await rig.start()
    domain = rig.domain()
    directory = rig.plugin_dir / "domains"
    directory.write_text("in the way")
    answer = await rig.prepare(rig.daemon(domain))
    assert answer.error.startswith("StateUnavailable: "), answer.error
    directory.unlink()
    assert not (await rig.prepare(rig.daemon(rig.domain()))).error


async def test_a_full_disk_refuses_new_claims_answers_held_ones_and_is_no_matter_once_there_is_room(
    rig: DomainRig,
) -> None:
    disk = rig.stack.enter_context(small_disk.mounted(rig.plugin_dir))
    await rig.start()
    domain = rig.domain()
    held, new = await rig.form(domain), rig.channel(domain)
    before = cdi_names(await rig.prepare(held))
    disk.fill()
    assert (await rig.prepare(new)).error.startswith("StateUnavailable: ")
    assert (await rig.unprepare(held)).startswith("StateUnavailable: ")
    assert cdi_names(await rig.prepare(held)) == before
    assert "full" in rig.process.get("/readyz?verbose")[1]
    disk.clear()
    assert cdi_names(await rig.prepare(new))
    assert [await rig.unprepare(each) for each in (new, held)] == ["", ""]


async def test_nvml_that_hangs_holds_up_nothing_but_claims(rig: DomainRig) -> None:
    rig.node.sim("slow", "60000", "--function", "nvmlInitWithFlags")
    rig.process = rig.launch(f"--namespace={rig.namespace}")
    rig.dra = await rig.kubelet.registered(rig.driver)
    answer = await rig.prepare(rig.daemon(rig.domain()), timeout_s=5)
    assert answer.error.startswith("DeadlineExceeded: "), answer.error


def _checkpoint(rig: DomainRig, answers: Any) -> None:
    """The kubelet's record of what it was answered."""
    claims = [
        {
            "ClaimUID": claim.uid,
            "ClaimName": claim.name,
            "Namespace": claim.namespace,
            "PodUIDs": {rig.pod_of(claim): {}},
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
