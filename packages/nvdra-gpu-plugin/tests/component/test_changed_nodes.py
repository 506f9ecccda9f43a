# SPDX-License-Identifier: Apache-2.0
"""A node that changed while the plugin was away: no name and no claim comes to mean another GPU."""

import os
import stat
from collections.abc import Mapping
from typing import Any

import yaml
from nvdra_sim import installation
from nvdra_sim.configuration import node_config
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names

ALL = {f"gpu-{minor}" for minor in range(8)}
OPERATORS = 4711
"""A group that an administrator has given a GPU to."""


def described(rig: Rig) -> dict[str, Mapping[str, Any]]:
    """What containers get for each CDI name of this node, beside what they all get."""
    found = {}
    for path in rig.node.cdi.glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())
        for device in spec["devices"]:
            found[f"{spec['kind']}={device['name']}"] = device["containerEdits"]
    return found


def uuid(rig: Rig, device: str) -> str:
    return str(rig.devices()[device]["attributes"]["uuid"]["string"])


async def stop(rig: Rig) -> None:
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)


async def test_a_held_claim_is_not_given_a_gpu_that_was_put_in_the_place_of_its_own(
    rig: Rig,
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    own = uuid(rig, "gpu-1")
    await stop(rig)
    roots = rig.node.roots
    installation.install(
        node_config.from_profile(
            plugin.PROFILE, "other-boards", {"node": {"visibility": "all"}}
        ),  # their UUIDs follow from this name
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    await rig.start()
    assert "gpu-1" not in rig.devices()
    answer = (await rig.dra.prepare([held]))[held.uid]
    assert own in answer.error, answer
    assert not answer.devices
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    new = rig.create_claim("gpu-32")  # its minor number is in the name that the claim held
    assert not (await rig.dra.prepare([new]))[new.uid].error


async def test_a_held_claim_is_answered_with_names_that_can_be_resolved_or_refused(
    rig: Rig,
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert set(cdi_names(before)) <= set(described(rig))
    await stop(rig)
    for spec in rig.node.cdi.iterdir():
        spec.unlink()
    driver_installation.install_driver(rig.node, version="590.44.1")
    await rig.start()
    answer = (await rig.dra.prepare([held]))[held.uid]
    assert answer.error or set(cdi_names(answer)) <= set(described(rig)), answer


async def test_a_device_node_of_another_gpu_is_not_handed_out(rig: Rig) -> None:
    node = rig.node.roots.dev / "nvidia1"
    right = node.stat().st_rdev
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, (rig.node.roots.dev / "nvidia2").stat().st_rdev)
    await rig.start()
    assert set(rig.devices()) == ALL - {"gpu-1"}
    claim = rig.create_claim("gpu-1")
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceNodeMissing: ")
    assert f"{node} is device " in text
    assert "another GPU's" in text
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, right)
    await rig.wait_until(lambda: set(rig.devices()) == ALL, "the GPU")
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    (name,) = cdi_names(answer)
    (own,) = (each for each in described(rig)[name]["deviceNodes"] if "nvidia1" in each["path"])
    assert (own["major"], own["minor"]) == (os.major(right), os.minor(right))


async def test_no_gpu_is_offered_before_nvidia_uvm_is_loaded(rig: Rig) -> None:
    """NVML works without it. CUDA does not, and a container can neither load nor make it."""
    driver_installation.install_driver(rig.node, uvm_loaded=False)
    await rig.start()
    claim = rig.create_claim("gpu-1")
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceNodeMissing: gpu-1 ")
    assert f"{rig.node.roots.dev}/nvidia-uvm, which is not on the node" in text
    assert "nvidia-modprobe -c0 -u" in text
    assert not rig.devices()
    await rig.wait_until(
        lambda: any("nvidia-uvm" in each["message"] for each in rig.events("DeviceNodeMissing")),
        "an Event of the Node",
    )
    driver_installation.load_uvm(rig.node)
    await rig.wait_until(lambda: set(rig.devices()) == ALL, "the GPUs")
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error
    (spec,) = rig.node.cdi.glob("*.yaml")
    assert "/nvidia-uvm-tools" in spec.read_text()


async def test_a_name_that_containers_have_never_comes_to_mean_something_else(rig: Rig) -> None:
    await rig.start()
    before = described(rig)
    assert len(before) == 8
    await stop(rig)
    node = rig.node.roots.dev / "nvidia1"
    os.chown(node, 0, OPERATORS)
    node.chmod(0o660)
    await rig.start()
    after = described(rig)
    assert {name: after[name] for name in before if name in after} == {
        name: before[name] for name in before if name in after
    }
    groups = [edits.get("additionalGids", []) for edits in after.values()]
    assert [OPERATORS in each for each in groups].count(True) == 1, "its containers get its group"
