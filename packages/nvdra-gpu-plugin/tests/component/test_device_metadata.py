# SPDX-License-Identifier: Apache-2.0
"""Containers read in files what was published of their devices (KEP-5304)."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_cdi.cache import Cache
from nvdra_runtime._generated.dra.v1 import api_pb2
from nvdra_testing.hardware import driver_installation
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names

GATE = "--feature-gates=DeviceMetadata=true"
WITH_MIG = f"{GATE},DynamicMIG=true"
MADE = "gpu-1-mig-1g10gb-19-0"
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
FROM_TEMPLATE = {"resource.kubernetes.io/pod-claim-name": "my-gpu"}
VERSIONS = ("v1beta1", "v1alpha1")


async def prepared(rig: Rig, *devices: str, **how: Any) -> tuple[ClaimRef, Any]:
    claim = rig.create_claim(*devices, **how)
    return claim, await answer(rig, claim)


async def answer(rig: Rig, claim: ClaimRef) -> Any:
    found = (await rig.dra.prepare([claim]))[claim.uid]
    assert not found.error, found.error
    return found


async def unprepare(rig: Rig, claim: ClaimRef) -> None:
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error


def mounted(rig: Rig, names: Sequence[str]) -> dict[str, str]:
    """The metadata files that a container with these CDI names has, by their paths in it."""
    edits = Cache([str(rig.node.cdi)]).resolve(list(names))
    found = {
        mount.container_path: Path(mount.host_path).read_text()
        for mount in edits.mounts
        if mount.container_path.startswith(f"{IN_CONTAINER}/")
    }
    assert all(
        mount.options == ("ro", "bind") for mount in edits.mounts if mount.container_path in found
    )
    return found


def read(text: str, known: Sequence[str] = VERSIONS) -> dict[str, Any]:
    """What a program reads that knows these versions: the first object of one of them."""
    decoder, rest = json.JSONDecoder(), text
    while rest:
        found, end = decoder.raw_decode(rest)
        if found["apiVersion"] in [f"metadata.resource.k8s.io/{version}" for version in known]:
            assert found["kind"] == "DeviceMetadata"
            return dict(found)
        rest = rest[end:].lstrip()
    raise AssertionError(f"no object of {known}")


def attributes(text: str) -> dict[str, dict[str, Any]]:
    """The attributes of each device in a file."""
    devices = [each for request in read(text)["requests"] for each in request["devices"]]
    return {each["name"]: each["attributes"] for each in devices}


def files(rig: Rig) -> dict[str, bytes]:
    """All metadata files and their CDI specs."""
    metadata = (rig.plugin_dir / "dra-device-metadata").rglob("*")
    specs = rig.node.cdi.glob("gpu.nvidia.com_metadata_*")
    return {str(path): path.read_bytes() for path in (*metadata, *specs) if path.is_file()}


@pytest.mark.protocol("M1", "M4")
@pytest.mark.parametrize(
    ("annotations", "directory"),
    [({}, "resourceclaims/CLAIM"), (FROM_TEMPLATE, "resourceclaimtemplates/my-gpu")],
    ids=["direct", "template"],
)
async def test_a_container_has_a_file_with_what_is_published_of_its_devices(
    rig: Rig, annotations: dict[str, str], directory: str
) -> None:
    await rig.start(WITH_MIG)
    claim, found = await prepared(rig, "gpu-0", MADE, annotations=annotations)
    ((path, text),) = mounted(rig, cdi_names(found)).items()
    directory = directory.replace("CLAIM", claim.name)
    assert path == f"{IN_CONTAINER}/{directory}/gpu/gpu.nvidia.com-metadata.json"
    metadata = read(text)
    assert metadata["metadata"] == {
        "name": claim.name,
        "namespace": "default",
        "uid": claim.uid,
        "generation": 1,
    }
    assert metadata.get("podClaimName") == ("my-gpu" if annotations else None)
    published = rig.devices()
    described = attributes(text)
    assert described["gpu-0"] == published["gpu-0"]["attributes"]
    uuid = described[MADE].pop("uuid")["string"]
    assert uuid.startswith("MIG-")
    assert uuid in rig.node.nvidia_smi("-L")
    assert described[MADE] == published[MADE]["attributes"]
    (rest,) = (list(device.cdi_device_ids) for device in found.devices[1:])
    assert len(rest) == 1, "the request's file is mounted once"
    assert await answer(rig, claim) == found
    await unprepare(rig, claim)
    assert files(rig) == {}
    assert not list((rig.plugin_dir / "dra-device-metadata").iterdir())


@pytest.mark.protocol("M5")
async def test_programs_that_know_one_version_alone_read_the_same(rig: Rig) -> None:
    await rig.start(GATE)
    _, found = await prepared(rig, "gpu-0")
    (text,) = mounted(rig, cdi_names(found)).values()
    newer, older = (read(text, [version]) for version in VERSIONS)
    assert newer.pop("apiVersion") != older.pop("apiVersion")
    assert newer == older
    assert read(text) == read(text, ["v2", "v1beta1"])


def create_claim_of_two_requests(rig: Rig) -> ClaimRef:
    """A claim with a request `a` for two GPUs and a prioritised list `b`, which got `b/large`."""
    whole = {"deviceClassName": plugin.DRIVER, "count": 1}
    requests = [
        {"name": "a", "exactly": {**whole, "count": 2}},
        {"name": "b", "firstAvailable": [{"name": "large", **whole}]},
    ]
    path, name = plugin.claims_path("default"), f"two-{rig.node.name}"
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
    claim = rig.server.create(path, body)
    results = [
        {"request": request, "driver": plugin.DRIVER, "pool": rig.node.name, "device": device}
        for request, device in (("a", "gpu-0"), ("b/large", "gpu-1"), ("a", "gpu-2"))
    ]
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    rig.server.request("PUT", f"{path}/{name}/status", claim)
    return ClaimRef("default", name, ClaimUID(claim["metadata"]["uid"]))


@pytest.mark.protocol("M2")
async def test_a_container_sees_the_devices_of_the_requests_that_it_names_alone(rig: Rig) -> None:
    await rig.start(GATE)
    claim = create_claim_of_two_requests(rig)
    found = await answer(rig, claim)
    seen: dict[str, list[str]] = {}
    for request in ("a", "b"):
        devices = [each for each in found.devices if request in each.request_names]
        names = [name for each in devices for name in each.cdi_device_ids]
        ((path, text),) = mounted(rig, names).items()
        assert path.split("/")[-2] == request
        seen |= {
            each["name"]: [device["name"] for device in each["devices"]]
            for each in read(text)["requests"]
        }
    assert seen == {"a": ["gpu-0", "gpu-2"], "b/large": ["gpu-1"]}
    await unprepare(rig, claim)
    assert files(rig) == {}


async def test_a_mig_device_of_an_administrator_is_described_as_it_is_published(rig: Rig) -> None:
    rig.node.nvidia_smi("-i", "2", "-mig", "1")
    rig.node.make_mig_device(2, "3g.40gb", 0)
    await rig.start(GATE)
    (name,) = (name for name in rig.devices() if name.startswith("gpu-2-mig"))
    _, found = await prepared(rig, name)
    (text,) = mounted(rig, cdi_names(found)).values()
    assert attributes(text) == {name: rig.devices()[name]["attributes"]}


async def test_without_the_gate_no_claim_gets_files_and_one_that_has_some_keeps_them(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    held, before = await prepared(rig, "gpu-0")
    content = files(rig)
    await rig.stop()
    await rig.start()
    _, found = await prepared(rig, "gpu-1")
    assert mounted(rig, cdi_names(found)) == {}
    assert await answer(rig, held) == before
    assert files(rig) == content
    await unprepare(rig, held)
    assert files(rig) == {}


async def test_files_that_are_removed_or_edited_are_put_back_without_a_call(rig: Rig) -> None:
    await rig.start(GATE)
    _, found = await prepared(rig, "gpu-0")
    content = files(rig)
    assert len(content) == 2
    metadata, spec = sorted(map(Path, content), key=lambda path: path.name != "metadata.json")
    metadata.write_text("{}")
    spec.unlink()
    await rig.wait_until(lambda: files(rig) == content, "the files")
    assert mounted(rig, cdi_names(found))


@pytest.mark.protocol("M3")
async def test_after_a_reboot_the_files_are_there_and_say_what_is_true_today(rig: Rig) -> None:
    await rig.start(WITH_MIG)
    claim, before = await prepared(rig, "gpu-0", MADE, pod_uid="p")
    (text,) = mounted(rig, cdi_names(before)).values()
    assert attributes(text)["gpu-0"]["driverVersion"] != {"version": "590.44.1"}
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, version="590.44.1")
    assert not list(rig.node.cdi.glob("*"))
    await rig.kubelet.restart()
    await rig.start(WITH_MIG)

    def said() -> dict[str, Any]:
        (path,) = (path for path in files(rig) if path.endswith("metadata.json"))
        return read(Path(path).read_text())

    await rig.wait_until(lambda: said()["metadata"]["generation"] > 1, "the next generation")
    await rig.wait_until(lambda: len(files(rig)) == 2, "the spec")
    assert await answer(rig, claim) == before
    (text,) = mounted(rig, cdi_names(before)).values()
    described = attributes(text)
    assert described["gpu-0"] == rig.devices()["gpu-0"]["attributes"]
    assert described["gpu-0"]["driverVersion"] == {"version": "590.44.1"}
    assert described[MADE]["uuid"]["string"] in rig.node.nvidia_smi("-L")
    await unprepare(rig, claim)
    assert files(rig) == {}


@contextmanager
def held_state_file(rig: Rig) -> Iterator[None]:
    """Keep the plugin from recording anything, until the block ends."""
    path = rig.plugin_dir / "state.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def killed_in(rig: Rig, call: Any, moment: Any) -> None:
    """Kill the plugin as soon as the moment of a call has come, and start it again."""
    async with asyncio.TaskGroup() as group:
        broken = group.create_task(is_broken(call))
        await rig.wait_until(moment, "the moment")
        rig.process.stop(signal.SIGKILL)
    assert broken.result()


async def is_broken(call: Any) -> bool:
    """Whether a call ends without an answer."""
    try:
        await call
    except Exception:  # noqa: BLE001 - gRPC's, whichever
        return True
    return False


async def test_a_plugin_that_is_killed_between_the_files_and_the_record_leaves_no_file(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    claim = rig.create_claim("gpu-0")
    with held_state_file(rig):
        await killed_in(rig, rig.dra.prepare([claim]), lambda: len(files(rig)) == 2)
    assert rig.recorded_claims() == {}
    await rig.kubelet.restart()
    await rig.start(GATE)
    await rig.wait_until(lambda: files(rig) == {}, "nothing to be left")
    found = await answer(rig, claim)
    assert mounted(rig, cdi_names(found))


async def test_a_plugin_that_is_killed_between_the_files_and_the_records_end_restores_them(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    claim, before = await prepared(rig, "gpu-0")
    content = files(rig)
    with held_state_file(rig):
        await killed_in(rig, rig.dra.unprepare([claim]), lambda: files(rig) == {})
    assert set(rig.recorded_claims()) == {claim.uid}
    await rig.kubelet.restart()
    await rig.start(GATE)
    await rig.wait_until(lambda: files(rig) == content, "the files")
    assert await answer(rig, claim) == before
    await unprepare(rig, claim)
    assert files(rig) == {}


async def test_a_new_claim_of_the_same_name_has_its_own_metadata(rig: Rig) -> None:
    await rig.start(GATE)
    old, _ = await prepared(rig, "gpu-0")
    rig.delete_claim(old)
    new, found = await prepared(rig, "gpu-1", name=old.name)
    (text,) = mounted(rig, cdi_names(found)).values()
    assert read(text)["metadata"]["uid"] == new.uid
    await unprepare(rig, old)
    assert list(mounted(rig, cdi_names(found)).values()) == [text]
    await unprepare(rig, new)
    assert files(rig) == {}


async def test_a_record_that_was_lost_comes_back_with_its_metadata(rig: Rig) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start(GATE)
    claim, before = await prepared(rig, "gpu-0", annotations=FROM_TEMPLATE)
    content = files(rig)
    kubelet.add_claim(claim, before)
    await rig.stop()
    (rig.plugin_dir / "state.sqlite").unlink()
    await rig.start()
    await rig.wait_until(lambda: set(rig.recorded_claims()) == {claim.uid}, "the record")
    assert await answer(rig, claim) == before
    assert files(rig) == content
    await unprepare(rig, claim)
    assert files(rig) == {}


async def test_metadata_of_the_reference_driver_is_kept_and_goes_with_its_claim(rig: Rig) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    claim = rig.create_claim("gpu-0")
    names = [
        f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-0",
        f"gpu.nvidia.com/metadata={claim.uid}_gpu",
    ]
    given = api_pb2.NodePrepareResourceResponse(
        devices=[
            api_pb2.Device(
                request_names=["gpu"],
                pool_name=rig.node.name,
                device_name="gpu-0",
                cdi_device_ids=names,
            )
        ]
    )
    kubelet.add_claim(claim, given)
    await rig.start()
    await rig.wait_until(lambda: set(rig.recorded_claims()) == {claim.uid}, "the record")
    assert list(cdi_names(await answer(rig, claim))) == names
    assert len(mounted(rig, names)) == 1
    await unprepare(rig, claim)
    assert files(rig) == {}


async def test_a_claim_whose_metadata_cannot_be_written_is_refused_and_others_are_served(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    claim = rig.create_claim("gpu-0", name=f"blocked-{rig.node.name}")
    blocked = rig.plugin_dir / f"dra-device-metadata/default_{claim.name}"
    blocked.parent.mkdir()
    blocked.touch()
    error = (await rig.dra.prepare([claim]))[claim.uid].error
    assert error.startswith("DeviceNodeMissing: the device metadata of claim default/blocked-")
    assert rig.recorded_claims() == {}
    await prepared(rig, "gpu-0")
    await prepared(rig, "gpu-1")
    blocked.unlink()
    await rig.stop()
    await rig.start(GATE)
    assert len(files(rig)) == 4
