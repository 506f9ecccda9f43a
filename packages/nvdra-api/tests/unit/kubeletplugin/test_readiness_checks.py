# SPDX-License-Identifier: Apache-2.0
"""What keeps a plugin from being ready: the kubelet, the slices, the state file."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.resource.slices import Device
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import PreparedClaimRecord
from nvdra_runtime.kubeletplugin import readiness_checks, registration, socket_server
from nvdra_runtime.kubeletplugin.registrar import Registrar, RegistrationStatus
from nvdra_runtime.kubeletplugin.server import KubeletStatus
from nvdra_runtime.kubeletplugin.socket_server import SocketServer
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

NODE = NodeName("node-a")
EMPTY = Pool(PoolName(NODE), ())
TWICE = Pool(PoolName(NODE), (Slice((Device(name=DeviceName("a")), Device(name=DeviceName("a")))),))
"""A pool with one name for two devices."""


class Kubelet:
    """The two sockets of a plugin, which serve nobody yet."""

    def __init__(self) -> None:
        paths = registration.socket_paths("d.example", "/p", "/r")
        info = registration.plugin_info("d.example", paths)
        self.registrar = Registrar(info, Path(paths.registration))
        self.service = SocketServer(Path(paths.dra), (), socket_server.skip_verification, 0o750)
        self.check = readiness_checks.registration_check(
            KubeletStatus(self.registrar, self.service)
        )


async def test_a_plugin_is_not_ready_until_the_kubelet_has_registered_it() -> None:
    kubelet = Kubelet()
    problem = kubelet.check() or ""
    assert problem.startswith("the kubelet has not registered the plugin yet; ")
    assert "does not see the plugin's socket in /r: set kubeletRegistrarDirectoryPath" in problem
    kubelet.registrar.state = RegistrationStatus(is_registered=True)
    assert kubelet.check() is None


async def test_a_rejected_registration_is_told_in_the_kubelets_words() -> None:
    kubelet = Kubelet()
    kubelet.registrar.state = RegistrationStatus(is_registered=False, error="no such version")
    assert kubelet.check() == "no such version"


async def test_a_registered_plugin_without_its_socket_is_not_ready() -> None:
    kubelet = Kubelet()
    kubelet.registrar.state = RegistrationStatus(is_registered=True)
    kubelet.service.problem = "/p/dra.sock: read-only file system"
    assert kubelet.check() == "/p/dra.sock: read-only file system"


def no_slices(request: Request) -> Answer:
    if request.line.endswith("/resourceslices"):
        return 200, {"metadata": {"resourceVersion": "1"}, "items": []}
    return 200, {"versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}}


async def test_slices_that_are_not_written_yet_are_waited_for_and_then_there() -> None:
    publisher = Publisher(RecordedApi(no_slices), "d.example", NODE)
    check = readiness_checks.slices_check(publisher)
    publisher.publish(EMPTY)
    assert check() == "the slices are being written"
    async with publisher.running():
        for _ in range(100):
            await asyncio.sleep(0)
        assert check() is None


async def test_slices_that_cannot_be_written_are_told_with_the_reason() -> None:
    publisher = Publisher(RecordedApi(no_slices), "d.example", NODE)
    publisher.publish(TWICE)
    problem = readiness_checks.slices_check(publisher)()
    assert problem == publisher.state.error != ""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RecordStore]:
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", SystemClock()) as opened:
        yield opened


def ignore_counts(claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
    """Count nothing."""


async def test_a_state_file_that_takes_changes_and_lacks_nothing_is_ready(
    store: RecordStore,
) -> None:
    prepared = PreparedClaims(store, PreparedClaimRecord, ignore_counts)
    assert readiness_checks.state_check(store, prepared)() is None


async def test_what_is_wrong_with_the_state_is_told_the_disk_before_the_records(
    store: RecordStore,
) -> None:
    prepared = PreparedClaims(store, PreparedClaimRecord, ignore_counts)
    check = readiness_checks.state_check(store, prepared)
    prepared.incomplete_reason = "the checkpoint cannot be read"
    assert check() == "the checkpoint cannot be read"
    store.problem = "the disk is full"
    assert check() == "the disk is full"
