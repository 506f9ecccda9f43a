# SPDX-License-Identifier: Apache-2.0
"""What containers get for the GPUs of a node, and what a device's name depends on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName, GpuUUID
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import Spec
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi import node_spec
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_testing.hardware.driver_tree import LIBRARIES, VERSION, DriverTree
from nvdra_testing.hardware.gpus import h100, in_mig_mode, mig_device

GPUS = (h100(0), h100(1))
PERSISTENCED = "/run/nvidia-persistenced/socket"
ORPHAN = "535.183.01"


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    """A node with the driver and two GPUs."""
    tree = DriverTree(tmp_path)
    tree.driver()
    tree.control_nodes()
    for minor in range(2):
        tree.node(f"/dev/nvidia{minor}", 195, minor)
    return tree


def spec_of(tree: DriverTree, *gpus: Gpu, previous: NodeSpec | None = None) -> NodeSpec:
    spec, faults = node_spec.build_node_spec(gpus or GPUS, Options(), {}, previous, host=tree.host)
    assert not faults
    return spec


def name_of(spec: NodeSpec, device: str = "gpu-0") -> str:
    return spec.generation.cdi_ids[DeviceName(device)]


def mounts(document: Spec) -> list[str]:
    return [mount.container_path for mount in document.container_edits.mounts]


def test_a_driver_without_nvidia_smi_is_remarked_with_its_path_on_the_node(
    tree: DriverTree,
) -> None:
    assert spec_of(tree).programs_remark == ""
    tree.remove("/usr/bin/nvidia-smi")
    remark = spec_of(tree).programs_remark
    assert remark.startswith("nvidia-smi is not below the driver root /, so that containers have")
    assert "global.nvidiaDriverRoot" in remark


def plug_in(tree: DriverTree) -> None:
    tree.node("/dev/nvidia2", 195, 2)


def add_library(tree: DriverTree) -> None:
    tree.library(f"{LIBRARIES}/libnvidia-nvvm.so.{VERSION}", "libnvidia-nvvm.so.4")


def add_modeset(tree: DriverTree) -> None:
    tree.node("/dev/nvidia-modeset", 195, 253)


def start_persistenced(tree: DriverTree) -> None:
    tree.file(PERSISTENCED)


def load_uvm_again(tree: DriverTree) -> None:
    tree.control_nodes(uvm=511)


@pytest.mark.parametrize(
    "change", [plug_in, add_library, add_modeset, start_persistenced, load_uvm_again]
)
def test_a_device_keeps_its_name_whatever_happens_around_it(
    tree: DriverTree, change: Callable[[DriverTree], None]
) -> None:
    before = spec_of(tree)
    change(tree)
    after = spec_of(tree, *GPUS, *([h100(2)] if change is plug_in else []))
    assert after.document({}) != before.document({}), "the change is in the spec"
    assert name_of(after) == name_of(before)
    assert after.generation.name == before.generation.name == VERSION


def test_a_gpu_that_answers_late_changes_no_other_name(tree: DriverTree) -> None:
    assert name_of(spec_of(tree, h100(0))) == name_of(spec_of(tree))


def test_a_device_has_another_name_with_another_driver_gpu_or_edits_of_its_own(
    tree: DriverTree,
) -> None:
    before = spec_of(tree)
    assert name_of(before) != name_of(before, "gpu-1").replace("gpu-1", "gpu-0")
    another = spec_of(tree, h100(0, uuid=GpuUUID("GPU-other")), h100(1))
    assert name_of(another) != name_of(before)
    assert name_of(another, "gpu-1") == name_of(before, "gpu-1")
    card = "/sys/bus/pci/devices/0000:00:00.0/drm/card0"
    tree.file(f"{card}/uevent")
    tree.node("/dev/dri/card0", 226, 0)
    assert name_of(spec_of(tree)) != name_of(before)


def test_a_driver_upgrade_begins_another_generation(tree: DriverTree) -> None:
    before = spec_of(tree)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        tree.remove(f"{LIBRARIES}/{name}.{VERSION}")
        tree.library(f"{LIBRARIES}/{name}.590.44.1", f"{name}.1")
    newer = [replace(gpu, driver_version="590.44.1") for gpu in GPUS]
    after = spec_of(tree, *newer)
    assert after.generation.name == "590.44.1"
    assert name_of(after) != name_of(before)
    assert node_spec.driver_version(before.document({})) == VERSION
    assert node_spec.driver_version(after.document({})) == "590.44.1"


def test_libraries_of_another_version_in_the_driver_root_are_not_for_containers(
    tree: DriverTree,
) -> None:
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"):
        tree.library(f"{LIBRARIES}/{name}.{ORPHAN}", f"{name}.1")
    document = spec_of(tree).document({})
    assert [path for path in mounts(document) if ORPHAN in path] == []
    assert f"{LIBRARIES}/libcuda.so.{VERSION}" in mounts(document)


def test_only_libraries_of_another_version_are_no_driver(tree: DriverTree) -> None:
    newer = [replace(gpu, driver_version="590.44.1") for gpu in GPUS]
    with pytest.raises(DiscoveryError, match=r"590\.44\.1"):
        spec_of(tree, *newer)


def test_the_sockets_of_services_are_mounted_while_they_exist_and_never_required(
    tree: DriverTree,
) -> None:
    without = spec_of(tree)
    assert PERSISTENCED not in mounts(without.document({}))
    start_persistenced(tree)
    running = spec_of(tree, previous=without)
    assert PERSISTENCED in mounts(running.document({}))
    assert all(
        PERSISTENCED not in {mount.host_path for mount in edits.mounts}
        for edits in running.container_edits.values()
    ), "a device does not need it"
    tree.remove(PERSISTENCED)
    stopped = spec_of(tree, previous=running)
    assert stopped.document({}) == without.document({})
    assert node_spec.with_sockets(running.document({}), stopped.sockets) == without.document({})
    assert node_spec.with_sockets(without.document({}), running.sockets) == running.document({})


def test_names_that_claims_have_are_those_of_their_gpus_of_today(tree: DriverTree) -> None:
    """After a reboot a GPU may have another minor number."""
    claimed = {"gpu-0-0123456789": GPUS[1].uuid, "gpu-7-0123456789": GpuUUID("GPU-gone")}
    spec = spec_of(tree)
    nodes = {
        device.name: [node.path for node in device.container_edits.device_nodes]
        for device in spec.document(claimed).devices
    }
    own = [spec.generation.cdi_ids[gpu.name].partition("=")[2] for gpu in GPUS]
    assert nodes == {
        own[0]: ["/dev/nvidia0"],
        own[1]: ["/dev/nvidia1"],
        "gpu-0-0123456789": ["/dev/nvidia1"],
    }


CAPABILITY = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


def make_instance(tree: DriverTree, gpu_instance: int, minor: int) -> None:
    """What the kernel module shows of a GPU instance with one compute instance of GPU 1."""
    folder = f"/proc/driver/nvidia/capabilities/gpu1/mig/gi{gpu_instance}"
    tree.file(f"{folder}/access", CAPABILITY.format(minor).encode())
    tree.file(f"{folder}/ci0/access", CAPABILITY.format(minor + 1).encode())


@pytest.fixture
def mig_tree(tree: DriverTree) -> DriverTree:
    """The same node, with two MIG instances on GPU 1."""
    tree.file("/proc/devices", b"Character devices:\n195 nvidia\n505 nvidia-caps\n")
    make_instance(tree, 1, 147)
    make_instance(tree, 11, 237)
    return tree


def nodes_of(document: Spec, device: str) -> list[str]:
    found = {each.name: each.container_edits.device_nodes for each in document.devices}
    return [node.path for node in found[device]]


def test_a_mig_device_has_the_node_of_its_gpu_and_those_of_its_capabilities(
    mig_tree: DriverTree,
) -> None:
    cut = in_mig_mode(1, (9, 0), (19, 4))
    spec = spec_of(mig_tree, h100(0), cut)
    for mig, capabilities in zip(cut.mig_devices, ((237, 238), (147, 148)), strict=True):
        name = name_of(spec, mig.name).partition("=")[2]
        assert name.startswith(f"{mig.name}-")
        assert nodes_of(spec.document({}), name) == [
            "/dev/nvidia1",
            *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in capabilities),
        ]
    alone = spec_of(mig_tree, h100(0), in_mig_mode(1, (9, 0)))
    assert name_of(alone, "gpu-1-mig-3g40gb-9-0") == name_of(spec, "gpu-1-mig-3g40gb-9-0")


def test_a_mig_instance_that_the_kernel_does_not_know_leaves_out_its_device_alone(
    mig_tree: DriverTree,
) -> None:
    cut = in_mig_mode(1, (9, 0), (19, 5))
    spec, faults = node_spec.build_node_spec((h100(0), cut), Options(), {}, None, mig_tree.host)
    assert [fault.device for fault in faults] == ["gpu-1-mig-1g10gb-19-5"]
    assert set(spec.device_edits) == {"gpu-0", "gpu-1", "gpu-1-mig-3g40gb-9-0"}


def test_mig_devices_without_numbers_of_capabilities_are_left_out_with_what_to_do(
    mig_tree: DriverTree,
) -> None:
    mig_tree.file("/proc/devices", b"Character devices:\n195 nvidia\n")
    cut = in_mig_mode(1, (9, 0))
    _, faults = node_spec.build_node_spec((h100(0), cut), Options(), {}, None, mig_tree.host)
    assert [fault.device for fault in faults] == ["gpu-1-mig-3g40gb-9-0"]
    assert "proc/devices does not list nvidia-caps; " in faults[0].text
    assert "global.procRoot" in faults[0].text


def test_a_claims_name_of_a_mig_device_never_means_one_of_another_profile(
    mig_tree: DriverTree,
) -> None:
    """NVML may give the UUID of a destroyed device to another one in its place."""
    before = in_mig_mode(1, (9, 0))
    (mig,) = before.mig_devices
    claimed = {f"{mig.name}-0123456789": mig.uuid}
    document = spec_of(mig_tree, before).document(claimed)
    assert f"{mig.name}-0123456789" in [device.name for device in document.devices]
    other = replace(before, mig_devices=(mig_device(before, 14, 0, uuid=mig.uuid, gpu_instance=1),))
    document = spec_of(mig_tree, other).document(claimed)
    assert f"{mig.name}-0123456789" not in [device.name for device in document.devices]


def test_without_nvidia_uvm_no_gpu_is_for_containers(tree: DriverTree) -> None:
    """CUDA would fail there, without a word. The other nodes beside the GPUs' are optional."""
    for name in ("nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        tree.remove(f"/dev/{name}")
    spec, faults = node_spec.build_node_spec(GPUS, Options(), {}, None, host=tree.host)
    assert not spec.devices
    assert [(fault.device, fault.reason) for fault in faults] == [
        ("gpu-0", Reason.DEVICE_NODE_MISSING),
        ("gpu-1", Reason.DEVICE_NODE_MISSING),
    ]
    assert "needs /dev/nvidia-uvm, which is not on the node" in faults[0].text
    tree.node("/dev/nvidia-uvm", 507, 0)
    assert list(spec_of(tree, previous=spec).devices) == [gpu.uuid for gpu in GPUS]


def test_a_device_keeps_its_edits_when_nvidia_uvm_is_gone(tree: DriverTree) -> None:
    """Whatever else came at the same time, and whatever has its major number now."""
    before = spec_of(tree)
    add_library(tree)
    tree.remove("/dev/nvidia-uvm")
    tree.remove("/dev/nvidia-uvm-tools")
    majors = {195: ["nvidia", "nvidiactl", "nvidia-modeset"], 507: ["another"]}
    after, faults = node_spec.build_node_spec(GPUS, Options(), majors, before, host=tree.host)
    assert not faults
    assert after == before
