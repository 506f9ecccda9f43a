# SPDX-License-Identifier: Apache-2.0
"""A node without driver or GPU; a driver that is installed later, removed or replaced.

Nobody restarts anything in these tests: one process lives through all of it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names

Change = Callable[[Rig], Awaitable[None]]

CONTROL = ("DRIVER_NOT_LOADED", 9), ("LIB_RM_VERSION_MISMATCH", 18)


def drivers(rig: Rig) -> set[str]:
    """Driver versions that the node's devices are published with."""
    found = rig.devices().values()
    return {device["attributes"]["driverVersion"]["version"] for device in found}


async def told(rig: Rig, text: str) -> None:
    """Wait until `/readyz`, the slices and the Node all say that there is no driver."""
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 503, "not to be ready")
    await rig.wait_until(
        lambda: text in rig.process.get("/readyz?verbose")[1], "the reason in /readyz"
    )
    await rig.wait_until(lambda: len(rig.slices()) == 1 and not rig.devices(), "an empty slice")
    assert rig.process.get("/healthz")[0] == 200

    def on_the_node() -> bool:
        return any(
            event["involvedObject"]["kind"] == "Node" and text in event["message"]
            for event in rig.events("DriverMismatch")
        )

    await rig.wait_until(on_the_node, "an Event of the Node")


async def recovered(rig: Rig, count: int = 8) -> None:
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the plugin to recover")
    await rig.wait_until(lambda: len(rig.devices()) == count, "the GPUs")
    claim = rig.create_claim("gpu-0")
    rig.dra = await rig.kubelet.wait_registered("gpu.nvidia.com")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error


async def test_a_driver_that_is_not_found_is_told_with_its_path_on_the_node(rig: Rig) -> None:
    library = next(rig.node.roots.driver.glob("usr/lib/*/libnvidia-ml.so.1"))
    library.rename(library.with_name("hidden"))
    rig.process = rig.launch("--nvidia-driver-root=/opt/nvidia")
    await told(rig, f"the driver root /opt/nvidia of the node ({rig.node.roots.driver} in this")


async def test_a_driver_root_without_programs_is_remarked_and_gpus_are_offered(rig: Rig) -> None:
    """Such as the directory of the libraries, one too deep."""
    (rig.node.roots.driver / "usr/bin/nvidia-smi").unlink()
    rig.process = rig.launch()
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "to be ready")
    page = rig.process.get("/readyz?verbose")[1]
    assert "[+]driver ok: nvidia-smi is not below the driver root" in page
    assert "Containers lack a program of the driver" in rig.process.log.read_text()
    assert rig.devices()


@pytest.mark.parametrize(("result", "number"), CONTROL)
async def test_nvml_that_does_not_initialise_is_told_until_it_does(
    rig: Rig, result: str, number: int
) -> None:
    rig.node.simctl("fault", "add", "nvmlInit*", "--result", result)
    rig.process = rig.launch()
    await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await told(rig, f"NVML error {number}")
    rig.node.simctl("fault", "rm", "all")
    await recovered(rig)
    await rig.wait_until(lambda: bool(rig.events("DriverWorks")), "an Event of the Node")


async def test_a_driver_that_is_installed_later_is_used(rig: Rig) -> None:
    driver_installation.remove_driver(rig.node)
    rig.process = rig.launch()
    await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await told(rig, "libnvidia-ml.so.1")
    driver_installation.install_driver(rig.node)
    await recovered(rig)


@pytest.mark.parametrize("rig", ["none"], indirect=True)
async def test_a_node_without_gpus_is_ready_says_so_and_offers_those_that_come_later(
    rig: Rig,
) -> None:
    await rig.start()
    assert not rig.devices()
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "[+]driver ok: the NVIDIA driver works and finds no GPU" in text
    assert "\nready\ndriver: the NVIDIA driver works and finds no GPU" in rig.status()
    await rig.wait_until(lambda: bool(rig.events("NoGPU")), "an Event of the Node")
    driver_installation.install_driver(rig.node)
    await recovered(rig)


async def test_a_kernel_module_that_is_unloaded_and_loaded_again(rig: Rig) -> None:
    """By force: calls of the session that stands answer DRIVER_NOT_LOADED; claims hear it."""
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-2")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    rig.node.simctl("driver", "unload", "--force")
    text = (await rig.dra.prepare([new]))[new.uid].error
    assert text.startswith("DriverMismatch: "), text
    await told(rig, "NVML error 9")
    assert (await rig.dra.prepare([new]))[new.uid].error.startswith("DriverMismatch: ")
    rig.node.simctl("driver", "load")
    await recovered(rig)
    assert (await rig.dra.prepare([held]))[held.uid] == before
    assert not (await rig.dra.prepare([new]))[new.uid].error


async def test_a_driver_that_is_removed_and_installed_again(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    driver_installation.remove_driver(rig.node)
    await told(rig, "libnvidia-ml.so.1")
    driver_installation.install_driver(rig.node)
    await recovered(rig)
    assert (await rig.dra.prepare([held]))[held.uid] == before


async def test_a_driver_that_is_replaced_in_place_serves_new_claims_and_keeps_old_answers(
    rig: Rig,
) -> None:
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-2")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert drivers(rig) == {"580.95.5"}
    driver_installation.install_driver(rig.node, version="590.44.1")
    await rig.wait_until(lambda: drivers(rig) == {"590.44.1"}, "the new driver to be published")
    after = (await rig.dra.prepare([new]))[new.uid]
    assert not after.error
    assert cdi_names(before)[0].rpartition("-")[2] != cdi_names(after)[0].rpartition("-")[2]
    specs = "".join(path.read_text() for path in rig.node.cdi.glob("*.yaml"))
    for answer in (before, after):  # what a prepared claim means never changes
        assert cdi_names(answer)[0].rpartition("=")[2] in specs
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    await recovered(rig)


async def test_a_claim_that_is_just_being_prepared_when_the_driver_changes_gets_the_new_one(
    rig: Rig,
) -> None:
    """Between its plan and its commit the node became another; the plan is made anew."""
    await rig.start()
    rig.node.simctl("slow", "8000", "--function", "nvmlDeviceGetMemoryInfo", "--gpu", "2")
    claim = rig.create_claim("gpu-2")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.dra.prepare([claim]))
        await asyncio.sleep(0.5)
        driver_installation.install_driver(rig.node, version="590.44.1")
        await rig.wait_until(lambda: drivers(rig) == {"590.44.1"}, "the new driver to be published")
        assert not call.done(), "the board's answer is waited for, from the old driver"
    answer = call.result()[claim.uid]
    assert not answer.error
    device = cdi_names(answer)[0].rpartition("=")[2]
    (spec,) = (text for path in rig.node.cdi.iterdir() if device in (text := path.read_text()))
    assert "libcuda.so.590.44.1" in spec
    assert "580.95.05" not in spec


async def sibling_claims(rig: Rig, first: str, second: str, change: Change) -> list[str]:
    """The errors of two claims of one pod, with a change between the two prepares."""
    pod = str(uuid4())
    errors = []
    for device in (first, second):
        claim = rig.create_claim(device, pod_uid=pod)
        errors.append((await rig.dra.prepare([claim]))[claim.uid].error)
        if device == first:
            await change(rig)
    return errors


def is_offered(rig: Rig, device: str) -> Callable[[], bool]:
    return lambda: device in rig.devices()


async def a_slow_gpu_answers(rig: Rig) -> None:
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(is_offered(rig, "gpu-1"), "the slow GPU")


async def a_gpu_is_plugged_in(rig: Rig) -> None:
    rig.node.simctl("gpu", "plug", "4")
    away = rig.node.kubelet.parent / "unplugged"
    away.rename(rig.node.roots.proc / "driver/nvidia/gpus" / (away / "name").read_text())
    await rig.wait_until(is_offered(rig, "gpu-4"), "the GPU")


async def a_device_node_appears(rig: Rig) -> None:
    driver_installation.install_driver(rig.node)
    await rig.wait_until(
        lambda: "/dev/nvidia-modeset" in next(rig.node.cdi.glob("*.yaml")).read_text(),
        "the node in the spec",
    )


async def a_file_appears(rig: Rig) -> None:
    """The plugin is started again, so that the file is found at once and not after a minute."""
    await rig.stop()
    driver_installation.install_driver(rig.node)
    await rig.start()
    assert "nvidia_icd.json" in next(rig.node.cdi.glob("*.yaml")).read_text()


async def uvm_gets_another_major(rig: Rig) -> None:
    driver_installation.install_driver(rig.node, settings={"majors": {"nvidia-uvm": 511}})
    await rig.wait_until(
        lambda: "major: 511" in next(rig.node.cdi.glob("*.yaml")).read_text(), "the new number"
    )


async def a_newer_driver_is_installed(rig: Rig) -> None:
    driver_installation.install_driver(rig.node, version="590.44.1")
    await rig.wait_until(lambda: drivers(rig) == {"590.44.1"}, "the new driver to be published")


async def test_a_gpu_that_answers_late_is_of_the_same_driver_as_the_others(rig: Rig) -> None:
    rig.node.simctl("slow", "-1", "--function", "nvmlDevice*", "--gpu", "1")
    await rig.start()
    assert await sibling_claims(rig, "gpu-0", "gpu-1", a_slow_gpu_answers) == ["", ""]


async def test_a_gpu_that_is_plugged_in_is_of_the_same_driver_as_the_others(rig: Rig) -> None:
    (place,) = (
        path
        for path in (rig.node.roots.proc / "driver/nvidia/gpus").iterdir()
        if re.search(r"Device Minor:\s+4\n", (path / "information").read_text())
    )
    rig.node.simctl("gpu", "unplug", "4")
    away = place.rename(rig.node.kubelet.parent / "unplugged")
    (away / "name").write_text(place.name)
    await rig.start()
    assert not is_offered(rig, "gpu-4")()
    assert await sibling_claims(rig, "gpu-0", "gpu-4", a_gpu_is_plugged_in) == ["", ""]


@pytest.mark.parametrize(
    ("missing", "change"),
    [
        ("nvidia-modeset", a_device_node_appears),
        ("nvidia_icd.json", a_file_appears),
        ("", uvm_gets_another_major),
    ],
)
async def test_what_is_added_to_a_driver_makes_no_other_driver_of_it(
    rig: Rig, missing: str, change: Change
) -> None:
    if missing:
        roots = (rig.node.roots.driver, rig.node.roots.dev)
        (path,) = (path for root in roots for path in root.rglob(missing))
        path.unlink()
    await rig.start()
    assert await sibling_claims(rig, "gpu-0", "gpu-1", change) == ["", ""]


async def test_one_pod_does_not_get_the_libraries_of_two_drivers(rig: Rig) -> None:
    await rig.start()
    first, second = await sibling_claims(rig, "gpu-0", "gpu-1", a_newer_driver_is_installed)
    assert first == ""
    assert second.startswith("DriverMismatch: ")
    assert "driver 590.44.1" in second
    assert "580.95.05" in second


async def test_libraries_that_another_version_has_left_behind_are_not_given_to_containers(
    rig: Rig,
) -> None:
    """An uninstaller forgot them; their version sorts before that of the driver."""
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (library,) = rig.node.roots.driver.rglob(f"{name}.580.95.05")
        library.with_name(f"{name}.535.183.01").write_bytes(library.read_bytes())
    await rig.start()
    (spec,) = rig.node.cdi.glob("*.yaml")
    assert "535.183.01" not in spec.read_text()
    assert "libcuda.so.580.95.05" in spec.read_text()
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
