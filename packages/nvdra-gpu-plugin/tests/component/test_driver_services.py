# SPDX-License-Identifier: Apache-2.0
"""nvidia-persistenced and nvidia-fabricmanager start and stop while the plugin runs.

Containers get their sockets while they exist and need none of them, so nothing is withdrawn.
"""

import pytest
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names

SERVICES = ("nvidia-persistenced", "nvidia-fabricmanager")
ALL = {f"gpu-{minor}" for minor in range(8)}


def has_socket(rig: Rig, name: str) -> set[bool]:
    """Whether containers get the service's socket, by the CDI specs of the node."""
    texts = [path.read_text() for path in rig.node.cdi.glob("*.yaml")]
    return {f"{name}/socket" in text for text in texts}


@pytest.mark.parametrize("name", SERVICES)
async def test_a_service_that_stops_and_starts_withdraws_no_gpu_and_changes_no_name(
    rig: Rig, name: str
) -> None:
    await rig.start()
    assert has_socket(rig, name) == {True}
    held, new = rig.create_claim("gpu-0"), rig.create_claim("gpu-1", pod_uid="p")
    before = (await rig.dra.prepare([held]))[held.uid]
    generations = [slice_["spec"]["pool"]["generation"] for slice_ in rig.slices()]
    driver_installation.stop_service(rig.node, name)
    answer = (await rig.dra.prepare([new]))[new.uid]
    assert not answer.error
    assert has_socket(rig, name) == {False}, "a container that starts now must not need it"
    assert (await rig.dra.prepare([held]))[held.uid] == before
    driver_installation.start_service(rig.node, name)
    await rig.wait_until(lambda: has_socket(rig, name) == {True}, "the socket to be there again")
    assert (await rig.dra.prepare([held]))[held.uid] == before
    sibling = rig.create_claim("gpu-2", pod_uid="p")
    assert not (await rig.dra.prepare([sibling]))[sibling.uid].error
    assert set(rig.devices()) == ALL
    assert [slice_["spec"]["pool"]["generation"] for slice_ in rig.slices()] == generations
    assert not rig.events("DeviceNodeMissing")
    assert "A GPU is not published" not in rig.process.log.read_text()
    assert rig.process.get("/readyz")[0] == 200


async def test_a_service_that_stops_is_noticed_without_a_claim(rig: Rig) -> None:
    await rig.start()
    driver_installation.stop_service(rig.node, "nvidia-persistenced")
    await rig.wait_until(
        lambda: has_socket(rig, "nvidia-persistenced") == {False}, "the socket to go"
    )
    assert set(rig.devices()) == ALL


async def test_the_spec_of_an_older_driver_has_the_sockets_that_exist_too(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    driver_installation.install_driver(rig.node, version="590.44.1")
    await rig.wait_until(lambda: len(list(rig.node.cdi.glob("*.yaml"))) == 2, "both specs")
    driver_installation.stop_service(rig.node, "nvidia-persistenced")
    await rig.wait_until(
        lambda: has_socket(rig, "nvidia-persistenced") == {False}, "the socket to go"
    )
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    driver_installation.start_service(rig.node, "nvidia-persistenced")
    await rig.start()
    await rig.wait_until(
        lambda: has_socket(rig, "nvidia-persistenced") == {True}, "the socket in both"
    )
    assert cdi_names((await rig.dra.prepare([held]))[held.uid]) == cdi_names(before)
