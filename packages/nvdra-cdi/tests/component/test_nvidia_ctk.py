# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs on drivers that lie elsewhere than usual, beside `nvidia-ctk cdi generate` 1.20.1.

Every profile in every mode is in test_every_profile_is_described_as_by_the_toolkit.py; here it is
about files, roots and hooks. Needs root.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nvdra_cdi import codec, files
from nvdra_cdi.model import Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Feature, Gpu, HookName, Naming, Options
from nvdra_sim.filesystem.driver_root import LIBRARIES
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode
from nvdra_testing.hardware import container_toolkit

KIND = "nvidia.com/gpu"

Theirs = Callable[..., Spec]


@pytest.fixture
def node(sim_node: MakeNode) -> MakeNode:
    """Makes a simulated node with real device nodes, which the toolkit insists on."""

    def make(profile: str, **render: str) -> SimulatedNode:
        return sim_node(profile, render={**container_toolkit.REAL_DEVICE_NODES["render"], **render})

    return make


@pytest.fixture
def theirs(nvidia_ctk: Path) -> Theirs:
    """The toolkit's document of a node, with its whole GPUs by UUID, corrected."""

    def run(node: SimulatedNode, *arguments: str) -> Spec:
        by_uuid = ("--mode=nvml", "--no-all-device", "--device-name-strategy=uuid")
        made = container_toolkit.generate_spec(nvidia_ctk, node, *by_uuid, *arguments)
        return container_toolkit.with_deviations(made, node)

    return run


def ours(node: SimulatedNode, **options: Any) -> Spec:
    """Our document for the same node and arguments."""
    given = Options(
        driver_root=str(node.roots.driver),
        dev_root=str(node.roots.dev.parent),
        sys_root=str(node.roots.sys),
        hook_path=container_toolkit.HOOK,
        **options,
    )
    gpus = [Gpu(gpu.uuid, gpu.minor, gpu.bus_id) for gpu in node.description.gpus]
    return generator.nvml_spec(given, gpus, [Naming.UUID], KIND)


OTHER_NODES = (
    *("nvidia-fs0", "nvidia-fs10", "gdrdrv", "infiniband/uverbs0", "infiniband/rdma_cm"),
    *("nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-caps/nvidia-cap1"),
)


@pytest.mark.parametrize(
    "arguments",
    [
        *([f"--mode={mode}"] for mode in ("gds", "gdrcopy", "mofed", "nvswitch")),
        ["--mode=mig-caps", "--device-id=config"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_devices_of_other_drivers_are_described_as_by_the_toolkit(
    node: MakeNode, nvidia_ctk: Path, arguments: list[str]
) -> None:
    made = node("t4")
    for number, name in enumerate(OTHER_NODES):
        path = made.roots.dev / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, 0o20660, os.makedev(510, number + 1))
    root = made.roots.driver
    (root / "run/udev").mkdir(parents=True)
    (root / "etc/cufile.json").write_text("{}")
    minors = "driver/nvidia-caps/mig-minors"  # of which the toolkit reads a copy in the root
    (root / "proc" / minors).parent.mkdir(parents=True)
    shutil.copy(made.roots.proc / minors, root / "proc" / minors)
    theirs = container_toolkit.generate_spec(nvidia_ctk, made, *arguments)
    roots = made.roots
    ours = made.run(
        *(sys.executable, "-m", "nvdra_cdi", "generate", "--format=json", *arguments),
        *(f"--driver-root={roots.driver}", f"--dev-root={roots.dev.parent}"),
        *(f"--sys-root={roots.sys}", f"--proc-root={roots.proc}"),
        f"--nvidia-cdi-hook-path={container_toolkit.HOOK}",
    )
    assert ours.returncode == 0, ours.stderr
    assert codec.loads(ours.stdout.encode()) == container_toolkit.with_deviations(theirs, made)


@pytest.mark.parametrize("layout", ["rhel", "cos"])
def test_a_driver_is_found_wherever_it_was_installed(
    node: MakeNode, theirs: Theirs, layout: str
) -> None:
    made = node("t4", layout=layout)
    assert ours(made) == theirs(made)


def test_libraries_without_a_directory_per_architecture_are_found(
    node: MakeNode, theirs: Theirs
) -> None:
    """The toolkit has to be given the directory, which must not be one of 32-bit libraries."""
    made = node("t4", layout="talos")
    assert ours(made) == theirs(made, f"--library-search-path={made.roots.driver}/lib")
    both = node("t4")
    root = both.roots.driver
    shutil.copytree(root / LIBRARIES["debian"], root / "usr/lib", dirs_exist_ok=True)
    assert ours(both) == theirs(both)


def test_the_rarer_files_of_a_driver_are_found_where_the_toolkit_finds_them(
    node: MakeNode, theirs: Theirs
) -> None:
    made = node("l40s")
    root, version = made.roots.driver, made.description.driver.version
    libraries = "usr/lib/x86_64-linux-gnu"
    for path in (
        f"{libraries}/libnvidia-egl-wayland.so.1.1.19",
        f"{libraries}/libnvidia-egl-wayland2.so.1.0.0",
        f"{libraries}/libnvidia-egl-xcb.so.1.0.1",
        f"{libraries}/libnvidia-vulkan-producer.so.{version}",
        f"{libraries}/libnvidia-nvvm70.so.4",
        f"{libraries}/nvidia/xorg/libglxserver_nvidia.so.{version}",
        f"usr/lib64/libnvidia-gtk3.so.{version}",
        "usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
        "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        "usr/local/share/vulkan/implicit_layer.d/nvidia_layers.json",
        "vulkan/icd.d/nvidia_icd.x86_64.json",
        f"lib/firmware/updates/nvidia/{version}/ucodes_gb20x.bin",
        "usr/local/bin/nvidia-xconfig",
        "sbin/nvidia-imex-ctl",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / libraries / f"libcuda.so.{version}", root / path)
        (root / path).chmod(0o755)
    (root / libraries / "libnvidia-gtk3.so").symlink_to(f"../../lib64/libnvidia-gtk3.so.{version}")
    generated = ours(made, enabled_hooks={HookName.CHMOD}, ldconfig_path="/sbin/ldconfig.real")
    hooks = ("--enable-hook=chmod", "--ldconfig-path=/sbin/ldconfig.real")
    assert generated == theirs(made, *hooks)


def test_libraries_that_only_the_linkers_cache_knows_are_found(
    node: MakeNode, theirs: Theirs, tmp_path: Path
) -> None:
    made = node("t4")
    root = tmp_path / "moved"
    sockets = shutil.ignore_patterns("run")
    shutil.copytree(made.roots.driver, root, symlinks=True, ignore=sockets)
    moved = root / "opt/nvidia/lib"
    moved.parent.mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu").rename(moved)
    subprocess.run(["ldconfig", "-r", root, "/opt/nvidia/lib"], check=True)
    environment = {**made.environment, "LD_LIBRARY_PATH": str(moved)}
    elsewhere = replace(made, roots=replace(made.roots, driver=root), environment=environment)
    generated = ours(elsewhere)
    assert generated == theirs(elsewhere)
    assert "NVIDIA_CTK_LIBCUDA_DIR=/opt/nvidia/lib" in generated.container_edits.env


def test_without_the_hooks_new_in_1_20_it_is_still_the_toolkits_document(
    node: MakeNode, theirs: Theirs
) -> None:
    made = node("l40s")
    off = [f"--disable-hook={hook}" for hook in sorted(NEW_IN_1_20)]
    assert ours(made, disabled_hooks=NEW_IN_1_20) == theirs(made, *off)


# Annotations of coherence the toolkit's command takes for itself: it prints a second spec
# of the class gpu.coherent, and no annotation. Ours are compared in the unit tests.
@pytest.mark.parametrize("feature", sorted(set(Feature) - {Feature.COHERENT_ANNOTATIONS}))
def test_a_feature_changes_what_the_toolkits_flag_of_that_name_changes(
    node: MakeNode, theirs: Theirs, feature: Feature
) -> None:
    made = node("gb200-nvl72")
    libraries = made.roots.driver / "usr/lib/x86_64-linux-gnu"
    for name in ("libEGL.so", "libnvidia-api.so"):
        shutil.copy(libraries / "libnvidia-ml.so.1", libraries / name)
    generated = ours(made, features={feature})
    assert generated == theirs(made, f"--feature-flag={feature}")
    assert generated != ours(made)


def test_a_document_for_another_root_is_the_toolkits_after_its_root_transform(
    node: MakeNode, theirs: Theirs, nvidia_ctk: Path, tmp_path: Path
) -> None:
    made = node("l40s")
    target = "/run/nvidia/driver"
    (tmp_path / "theirs.yaml").write_bytes(codec.dumps(theirs(made)))
    moved = made.run(
        *(nvidia_ctk, "--quiet", "cdi", "transform", "root", f"--from={made.roots.driver}"),
        *(f"--to={target}", f"--input={tmp_path / 'theirs.yaml'}"),
    )
    assert moved.returncode == 0, moved.stderr
    assert ours(made, target_driver_root=target) == codec.loads(moved.stdout.encode())


def test_the_toolkit_reads_what_we_write_and_would_write_the_same_bytes(
    node: MakeNode, nvidia_ctk: Path, tmp_path: Path
) -> None:
    made = node("dgx-h100")
    files.write(ours(made), tmp_path / "ours.yaml")
    listed = made.run(nvidia_ctk, "--quiet", "cdi", "list", f"--spec-dir={tmp_path}")
    assert listed.stdout.split() == sorted(f"{KIND}={gpu.uuid}" for gpu in made.description.gpus)
    again = made.run(
        *(nvidia_ctk, "--quiet", "cdi", "transform", "root", "--from=/a", "--to=/b"),
        f"--input={tmp_path / 'ours.yaml'}",
    )
    assert again.stdout == (tmp_path / "ours.yaml").read_text()
