# SPDX-License-Identifier: Apache-2.0
"""A node is rebooted while claims have GPUs on vfio; the numbers are those of the acceptance cases.

The kernel binds all GPUs to their own driver again, forgets `driver_override`, and numbers vfio
devices in the order in which they are bound.
"""

import asyncio
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from typing import Any
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio
from nvdra_api.resource.claims import ClaimRef
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import CDIError
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import passthrough_rig, plugin
from nvdra_testing.node.passthrough_rig import PassthroughRig
from nvdra_testing.node.rig import cdi_names

VFIO = "vfio-pci"
AS_BOOTED = ("nvidia", "(null)")
IOMMUFD = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "VfioDeviceConfig",
    "iommu": {"backendPolicy": "PreferIommuFD"},
}


@pytest_asyncio.fixture
async def rig(server: ApiServer) -> AsyncIterator[PassthroughRig]:
    async with passthrough_rig.open_rig(server, f"node-{uuid4().hex[:6]}") as rig:
        yield rig


async def prepared(rig: PassthroughRig, device: str) -> tuple[ClaimRef, Any]:
    claim = rig.create_claim(device, config=[plugin.opaque_config(IOMMUFD)])
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error, answer.error
    return claim, answer


def nodes_of(rig: PassthroughRig, answer: Any) -> list[str]:
    """The device nodes that a container of a claim gets; none if the runtime knows no such name."""
    try:
        edits = Cache([rig.node.cdi]).resolve(list(cdi_names(answer)))
    except CDIError:
        return []
    return [node.path for node in edits.device_nodes]


def has_nodes(rig: PassthroughRig, answer: Any) -> bool:
    """Whether there is a spec with its names."""
    return nodes_of(rig, answer) != []


def vfio_node(rig: PassthroughRig, index: int) -> str:
    """The device node of a GPU on vfio, as sysfs has it."""
    (entry,) = (rig.served.device(index) / "vfio-dev").iterdir()
    return f"/dev/vfio/devices/{entry.name}"


def binding(rig: PassthroughRig, index: int) -> tuple[str | None, str]:
    return rig.driver_of(index), rig.override_of(index)


def bind_to_vfio(rig: PassthroughRig, index: int) -> None:
    """Bind a GPU as an administrator does."""
    subprocess.run([*rig.served.kmod("modprobe"), "vfio-pci"], check=True)
    drivers, device = rig.served.sys / "bus/pci/drivers", rig.served.device(index)
    (drivers / "nvidia/unbind").write_text(device.name)
    (device / "driver_override").write_text(VFIO)
    (drivers / VFIO / "bind").write_text(device.name)


def forbid_changes(rig: PassthroughRig, index: int) -> None:
    """Have a GPU that is unbound never be bound again, whatever is written."""
    rig.node.simctl("pci", "fault", rig.served.address(index), "--bind-error=EIO")


async def interrupted(rig: PassthroughRig, claim: ClaimRef) -> None:
    """Make a call that ends with its plugin."""
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.dra.prepare([claim])


def started_claims(rig: PassthroughRig) -> set[str]:
    """The claims whose changes were begun and have not ended, by UID."""
    path = rig.plugin_dir / "state.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return {uid for (uid,) in connection.execute("SELECT uid FROM started_records")}


async def test_a_claim_whose_pod_went_with_the_reboot_is_let_go_without_touching_the_gpu(
    rig: PassthroughRig,
) -> None:
    """Case 20, as with the pod of a virtual machine of KubeVirt, which is not started again."""
    await rig.start_passing()
    claim, _ = await prepared(rig, "gpu-vfio-1")
    await rig.reboot()
    assert binding(rig, 1) == AS_BOOTED
    forbid_changes(rig, 1)
    rig.node.simctl("slow", "-1", "--function", "nvmlInit*")
    rig.process = rig.launch(*rig.flags(), environ=rig.environ)
    rig.dra = await rig.kubelet.wait_registered(rig.driver, plugin.START_S)
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert not rig.recorded_claims()
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the GPUs")
    assert binding(rig, 1) == AS_BOOTED
    assert not list(rig.node.cdi.glob(f"*{claim.uid}*"))
    whole = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([whole]))[whole.uid].error


async def test_what_was_begun_before_the_reboot_is_forgotten_without_touching_the_gpu(
    rig: PassthroughRig,
) -> None:
    await rig.start_passing()
    rig.node.simctl("pci", "fault", rig.served.address(1), "--driver=vfio-pci", "--bind-ms=60000")
    claim = rig.create_claim("gpu-vfio-1")
    async with asyncio.TaskGroup() as group:
        group.create_task(interrupted(rig, claim))
        await rig.wait_until(lambda: rig.driver_of(1) == VFIO, "the bind to begin")
        rig.process.stop(signal.SIGKILL)
    assert started_claims(rig) == {claim.uid}
    await rig.reboot()
    forbid_changes(rig, 1)
    await rig.start_passing()
    await rig.wait_until(lambda: not started_claims(rig), "the record to go")
    assert binding(rig, 1) == AS_BOOTED
    whole = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([whole]))[whole.uid].error


async def test_held_claims_have_their_gpus_bound_again_whatever_numbers_vfio_gives_them(
    rig: PassthroughRig,
) -> None:
    """Cases 20 and 21, as with the pod of a virtual machine of Kata, whose sandbox is made anew."""
    await rig.start_passing()
    held = {index: await prepared(rig, f"gpu-vfio-{index}") for index in (1, 0)}
    before = {index: vfio_node(rig, index) for index in held}
    for index, (_, answer) in held.items():
        assert nodes_of(rig, answer) == [before[index]]
    await rig.reboot()
    bind_to_vfio(rig, 3)  # it has the first number now
    await rig.start_passing()
    for index, (claim, answer) in held.items():
        await rig.wait_until(partial(has_nodes, rig, answer), f"the names of gpu-vfio-{index}")
        assert binding(rig, index) == (VFIO, VFIO)
        assert nodes_of(rig, answer) == [vfio_node(rig, index)]
        assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    after = {index: vfio_node(rig, index) for index in held}
    assert after != before
    for index, (claim, _) in held.items():
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
        assert binding(rig, index) == AS_BOOTED
