# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cdi.md §21.1: one full GPU, driver on the host itself."""

from pathlib import Path

import pytest
from nvdra_cdi import codec, validation, version
from nvdra_cdi.model import Device, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Gpu, Options
from nvdra_testing.hardware.driver_tree import DriverTree, SimulatedHost

GPU = Gpu("GPU-9d3c1a52-6b0e-5f4d-8c7a-20f1e4b7a911", 0, "00000000:3B:00.0")
KIND = "k8s.gpu.nvidia.com/claim"
NAME = "5f0b7c1e-2d64-4a0f-9e55-7c0d9a4f31b2-gpu-0"
LIB = "/usr/lib/x86_64-linux-gnu"
HOOK = "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook"
VER = "580.95.05"


@pytest.fixture
def node(tree: DriverTree) -> SimulatedHost:
    """The example node dgx-lab-07."""
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-allocator"):
        tree.library(f"{LIB}/{name}.so.{VER}", f"{name}.so.1")
        tree.link(f"{LIB}/{name}.so.1", f"{name}.so.{VER}")
    tree.library(f"{LIB}/libGLX_nvidia.so.{VER}", "libGLX_nvidia.so.0")
    tree.library(f"{LIB}/libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1")
    tree.library(f"{LIB}/vdpau/libvdpau_nvidia.so.{VER}", "libvdpau_nvidia.so.1")
    for name in ("nvidia-smi", "nvidia-debugdump"):
        tree.file(f"/usr/bin/{name}", mode=0o755)
    for path in (
        f"/lib/firmware/nvidia/{VER}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VER}/gsp_tu10x.bin",
        "/run/nvidia-persistenced/socket",
        "/etc/OpenCL/vendors/nvidia.icd",
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/usr/share/nvidia/nvoptix.bin",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    ):
        tree.file(path)
    tree.control_nodes()
    tree.node("/dev/nvidia0", 195, 0)
    tree.node("/dev/dri/card1", 226, 1, 0o660, 44)
    tree.node("/dev/dri/renderD128", 226, 128, 0o660, 110)
    tree.link("/dev/dri/by-path/pci-0000:3b:00.0-card", "../card1")
    tree.link("/dev/dri/by-path/pci-0000:3b:00.0-render", "../renderD128")
    tree.link("/sys/bus/pci/devices/0000:3b:00.0", "../../../devices/pci0000:3a/0000:3b:00.0")
    tree.file("/sys/devices/pci0000:3a/0000:3b:00.0/drm/card1/dev")
    tree.file("/sys/devices/pci0000:3a/0000:3b:00.0/drm/renderD128/dev")
    return tree.host


def generate(host: SimulatedHost) -> Spec:
    options = Options(hook_path=HOOK, driver_version=VER, disabled_hooks=NEW_IN_1_20)
    device = Device(NAME, generator.gpu_edits(options, GPU, host))
    return assemble(KIND, generator.common_edits(options, host), [device])


def test_a_full_gpu_gives_the_document_of_the_worked_example(
    node: SimulatedHost, golden: Path
) -> None:
    expected = codec.loads((golden / "full-gpu.json").read_bytes())
    assert generate(node) == expected


def test_the_worked_example_is_valid_and_needs_0_7_0_for_its_groups(node: SimulatedHost) -> None:
    spec = generate(node)
    assert validation.problems(spec) == ()
    assert version.minimum_required(spec) == "0.7.0"


def test_the_worked_example_is_written_as_the_golden_yaml(
    node: SimulatedHost, golden: Path
) -> None:
    assert codec.dumps(generate(node)).decode() == (golden / "full-gpu.yaml").read_text()


def test_generating_twice_gives_the_same_digest(node: SimulatedHost) -> None:
    first, second = generate(node), generate(node)
    assert codec.digest(first.container_edits) == codec.digest(second.container_edits)
    assert codec.digest(first.container_edits) != codec.digest(first.devices[0].container_edits)
