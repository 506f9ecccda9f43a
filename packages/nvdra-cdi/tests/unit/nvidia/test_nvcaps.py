# SPDX-License-Identifier: Apache-2.0
"""MIG devices: the parent's node and two capabilities (docs/reference/cdi.md §16.2, §21.2)."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_cdi import codec, validation
from nvdra_cdi.errors import DiscoveryError, MissingCapabilitiesError
from nvdra_cdi.model import Device
from nvdra_cdi.nvidia import generator, nvcaps
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Gpu, MigDevice, Naming, Options
from nvdra_testing.hardware.driver_tree import DriverTree

LIB = "/usr/lib/x86_64-linux-gnu"
VER = "580.95.05"
ROOT = "/driver-root"
GPU = Gpu("GPU-1", 0, "00000000:3B:00.0", has_mig_mode=True)
MIG = MigDevice("MIG-1", GPU, gpu_instance=2, compute_instance=0, index=0)
CAPABILITIES = "/proc/driver/nvidia/capabilities/gpu0/mig/gi2"
OPTIONS = Options(
    driver_root=ROOT,
    target_driver_root="/run/nvidia/driver",
    hook_path="/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook",
    driver_version=VER,
    disabled_hooks=NEW_IN_1_20,
)


def access(minor: int, mode: int = 292) -> bytes:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n".encode()


@pytest.fixture
def node(tree: DriverTree) -> DriverTree:
    """A driver container on a node whose first GPU has one MIG device, as in the example."""
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        tree.library(f"{ROOT}{LIB}/{name}.so.{VER}", f"{name}.so.1")
        tree.link(f"{ROOT}{LIB}/{name}.so.1", f"{name}.so.{VER}")
    tree.file(f"{ROOT}/usr/bin/nvidia-smi", mode=0o755)
    tree.file(f"{ROOT}/lib/firmware/nvidia/{VER}/gsp_ga10x.bin")
    tree.file(f"{ROOT}/run/nvidia-persistenced/socket")
    tree.control_nodes(ROOT)
    tree.node(f"{ROOT}/dev/nvidia0", 195, 0)
    tree.file(
        "/proc/devices",
        b"Character devices:\n  1 mem\n505 nvidia-caps\n506 nvidia-caps-imex-channels\n\n"
        b"Block devices:\n  8 sd\n",
    )
    tree.file(f"{CAPABILITIES}/access", access(21))
    tree.file(f"{CAPABILITIES}/ci0/access", access(22))
    return tree


def test_a_mig_device_gives_the_document_of_the_worked_example(
    node: DriverTree, golden: Path
) -> None:
    name = "c41d2f80-93a7-4d0e-b6a1-0a5be1f7d6c9-gpu-0-mig-3g40gb-9-4"
    device = Device(name, generator.mig_edits(OPTIONS, MIG, node.host))
    common = generator.common_edits(OPTIONS, node.host)
    spec = assemble("k8s.gpu.nvidia.com/claim", common, [device])
    assert spec == codec.loads((golden / "mig-device.json").read_bytes())
    assert validation.problems(spec) == ()


def test_only_a_graphics_profile_gets_the_drm_nodes_of_its_gpu(node: DriverTree) -> None:
    node.node(f"{ROOT}/dev/dri/card1", 226, 1, 0o660, 44)
    node.link(f"{ROOT}/dev/dri/by-path/pci-0000:3b:00.0-card", "../card1")
    node.file("/sys/bus/pci/devices/0000:3b:00.0/drm/card1/dev")
    plain = generator.mig_edits(OPTIONS, MIG, node.host)
    graphics = generator.mig_edits(OPTIONS, replace(MIG, is_graphics=True), node.host)
    assert [one.path for one in plain.device_nodes].count("/dev/dri/card1") == 0
    assert plain.hooks == ()
    assert set(graphics.device_nodes) - set(plain.device_nodes) == {
        one for one in graphics.device_nodes if one.path == "/dev/dri/card1"
    }
    assert graphics.hooks[0].args[3] == "../card1::/dev/dri/by-path/pci-0000:3b:00.0-card"


def test_a_mig_device_whose_instance_is_gone_is_an_error_with_the_file(node: DriverTree) -> None:
    node.remove(f"{CAPABILITIES}/ci0/access")
    with pytest.raises(DiscoveryError, match=r"gi2/ci0/access .*MIG-1.* does not exist"):
        generator.mig_edits(OPTIONS, MIG, node.host)


def test_a_capability_that_says_nothing_is_an_error_with_the_file(node: DriverTree) -> None:
    node.file(f"{CAPABILITIES}/access", b"DeviceFileMinor: many\n")
    with pytest.raises(DiscoveryError, match=r"gi2/access .*minor and mode"):
        generator.mig_edits(OPTIONS, MIG, node.host)


@pytest.mark.parametrize(
    "devices",
    [
        b"",
        b"Character devices:\n195 nvidia\n505 nvidia-capsule\n\nBlock devices:\n505 nvidia-caps\n",
    ],
)
def test_without_a_major_for_capabilities_the_file_is_named(
    node: DriverTree, devices: bytes
) -> None:
    node.file("/proc/devices", devices)
    file = node.top / "proc/devices"
    with pytest.raises(MissingCapabilitiesError, match=f"^{file} does not list nvidia-caps$"):
        generator.mig_edits(OPTIONS, MIG, node.host)


def test_where_procfs_shows_no_capability_the_minors_are_computed(node: DriverTree) -> None:
    for path in ("ci0/access", "access"):
        node.remove(f"{CAPABILITIES}/{path}")
    hidden = node.top / "proc/driver"
    hidden.rename(node.top / "elsewhere")
    nodes = generator.mig_edits(OPTIONS, MIG, node.host).device_nodes
    assert [(one.path, one.minor, one.file_mode) for one in nodes[1:]] == [
        ("/dev/nvidia-caps/nvidia-cap21", 21, 292),
        ("/dev/nvidia-caps/nvidia-cap22", 22, 292),
    ]


def test_what_the_kernel_module_says_wins_over_the_formula(
    node: DriverTree, caplog: pytest.LogCaptureFixture
) -> None:
    node.file(f"{CAPABILITIES}/access", access(77, 256))
    with caplog.at_level(logging.WARNING):
        nodes = generator.mig_edits(OPTIONS, MIG, node.host).device_nodes
    assert (nodes[1].path, nodes[1].file_mode) == ("/dev/nvidia-caps/nvidia-cap77", 256)
    assert [record.args for record in caplog.records] == [(f"{CAPABILITIES[5:]}/access", 77, 21)]


def test_minors_follow_gpu_and_instance() -> None:
    assert nvcaps.access_minor(0, 0) == 3
    assert nvcaps.access_minor(0, 2) == 21
    assert nvcaps.access_minor(31, 14) == 3 + 135 * 31 + 126


def test_a_mig_device_without_its_gpus_node_is_an_error_that_names_it(node: DriverTree) -> None:
    node.remove(f"{ROOT}/dev/nvidia0")
    with pytest.raises(DiscoveryError, match=r"/dev/nvidia0 .*GPU-1"):
        generator.mig_edits(OPTIONS, MIG, node.host)


def test_capabilities_are_not_missing_though_the_host_has_no_such_nodes(node: DriverTree) -> None:
    edits = generator.mig_edits(OPTIONS, MIG, node.host)
    assert generator.missing_paths(OPTIONS, edits, node.host) == []
    node.remove(f"{ROOT}/dev/nvidia0")
    assert generator.missing_paths(OPTIONS, edits, node.host) == ["/run/nvidia/driver/dev/nvidia0"]


def test_a_mig_device_is_called_by_index_type_or_uuid() -> None:
    mig = replace(MIG, parent=replace(GPU, index=3), index=1)
    assert [mig.name(naming) for naming in Naming] == ["3:1", "mig3:1", "MIG-1"]
    assert [mig.parent.name(naming) for naming in Naming] == ["3", "gpu3", "GPU-1"]
