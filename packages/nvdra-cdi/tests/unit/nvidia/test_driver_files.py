# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs on nodes that differ from the worked example (the variants of
docs/reference/cdi.md §22).
"""

import logging

import pytest
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, DeviceNode, Mount
from nvdra_cdi.nvidia import driver_root, generator
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Gpu, HookName, Options
from nvdra_testing.hardware.driver_tree import DriverTree

GPU = Gpu("GPU-1", 1, "00000000:3B:00.0")
VER = "580.95.05"
LIB = "/usr/lib/x86_64-linux-gnu"


def mounts(edits: ContainerEdits) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def hooks(edits: ContainerEdits) -> dict[str, tuple[str, ...]]:
    return {hook.args[1]: hook.args[2:] for hook in edits.hooks}


def test_the_least_driver_gives_its_libraries_links_and_program(tree: DriverTree) -> None:
    tree.driver()
    edits = generator.common_edits(Options(disabled_hooks=NEW_IN_1_20), tree.host)
    assert list(mounts(edits)) == [
        f"{LIB}/libcuda.so.{VER}",
        f"{LIB}/libnvidia-ml.so.{VER}",
        "/usr/bin/nvidia-smi",
    ]
    assert list(hooks(edits)) == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert edits.env == (f"NVIDIA_CTK_LIBCUDA_DIR={LIB}", "NVIDIA_VISIBLE_DEVICES=void")
    assert edits.device_nodes == ()


def test_a_driver_in_a_container_is_mounted_from_where_the_host_has_it(tree: DriverTree) -> None:
    tree.driver("/driver-root")
    tree.control_nodes("/driver-root")
    tree.node("/driver-root/dev/nvidia1", 195, 1)
    options = Options(driver_root="/driver-root", target_driver_root="/run/nvidia/driver")
    edits = generator.common_edits(options, tree.host)
    assert mounts(edits)["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert {node.host_path for node in edits.device_nodes} == {
        f"/run/nvidia/driver{node.path}" for node in edits.device_nodes
    }
    (node,) = generator.gpu_edits(options, GPU, tree.host).device_nodes
    assert (node.path, node.host_path) == ("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1")


def test_nodes_of_the_host_itself_have_no_host_path(tree: DriverTree) -> None:
    tree.driver("/driver-root")
    tree.node("/dev/nvidia1", 195, 1)
    options = Options(driver_root="/driver-root", target_driver_root="/", dev_root="/")
    (node,) = generator.gpu_edits(options, GPU, tree.host).device_nodes
    assert (node.path, node.host_path) == ("/dev/nvidia1", "")


def test_an_absolute_link_in_a_driver_root_means_a_file_of_that_root(tree: DriverTree) -> None:
    tree.library(f"/driver-root/opt/nvidia/libcuda.so.{VER}", "libcuda.so.1")
    tree.link(f"/driver-root/usr/lib64/libcuda.so.{VER}", f"/opt/nvidia/libcuda.so.{VER}")
    tree.file("/driver-root/opt/nvidia/smi", mode=0o755)
    tree.link("/driver-root/usr/bin/nvidia-smi", "/opt/nvidia/smi")
    options = Options(driver_root="/driver-root", target_driver_root="/host")
    assert mounts(generator.common_edits(options, tree.host)) == {
        f"/opt/nvidia/libcuda.so.{VER}": f"/host/opt/nvidia/libcuda.so.{VER}",
        "/usr/bin/nvidia-smi": "/host/opt/nvidia/smi",
    }


def test_libraries_that_loop_or_leave_the_root_are_passed_over(tree: DriverTree) -> None:
    tree.driver("/driver-root")
    tree.library(f"/outside.so.{VER}")
    tree.link(f"/driver-root{LIB}/libloop.so.{VER}", f"libloop.so.{VER}")
    tree.link(f"/driver-root{LIB}/libout.so.{VER}", f"../../../../outside.so.{VER}")
    options = Options(driver_root="/driver-root")
    names = [path.rpartition("/")[2] for path in mounts(generator.common_edits(options, tree.host))]
    assert names == [f"libcuda.so.{VER}", f"libnvidia-ml.so.{VER}", "nvidia-smi"]


def test_two_library_directories_come_main_first_then_vdpau(tree: DriverTree) -> None:
    tree.driver()
    tree.library(f"/usr/lib64/libnvidia-cfg.so.{VER}", "libnvidia-cfg.so.1")
    tree.library(f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VER}", "libvdpau_nvidia.so.1")
    edits = generator.common_edits(Options(), tree.host)
    assert edits.env[0] == f"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64:{LIB}"
    folders = hooks(edits)["update-ldcache"][1::2]
    assert folders == ("/usr/lib64", LIB, "/usr/lib64/vdpau")


def test_the_special_links_are_made_even_where_the_library_cannot_be_read(tree: DriverTree) -> None:
    tree.driver()
    tree.file(f"{LIB}/libGLX_nvidia.so.{VER}", b"no ELF file")
    tree.library(f"{LIB}/libnvidia-opticalflow.so.{VER}", "libnvidia-opticalflow.so.1")
    tree.link(f"{LIB}/libnvidia-opticalflow.so.1", f"libnvidia-opticalflow.so.{VER}")
    tree.link(f"{LIB}/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1")
    links = hooks(generator.common_edits(Options(), tree.host))["create-symlinks"][1::2]
    assert links == (
        f"libGLX_nvidia.so.{VER}::{LIB}/libGLX_indirect.so.0",
        f"libcuda.so.1::{LIB}/libcuda.so",
        f"libcuda.so.{VER}::{LIB}/libcuda.so.1",
        f"libnvidia-ml.so.{VER}::{LIB}/libnvidia-ml.so.1",
        f"libnvidia-opticalflow.so.1::{LIB}/libnvidia-opticalflow.so",
        f"libnvidia-opticalflow.so.{VER}::{LIB}/libnvidia-opticalflow.so.1",
    )


def test_graphics_files_come_with_the_links_that_loaders_look_for(tree: DriverTree) -> None:
    tree.driver()
    tree.library(f"{LIB}/libnvidia-allocator.so.{VER}", "libnvidia-allocator.so.1")
    tree.library(f"{LIB}/libnvidia-vulkan-producer.so.{VER}")
    tree.library(f"{LIB}/nvidia/xorg/libglxserver_nvidia.so.{VER}")
    tree.library("/usr/lib/xorg/modules/drivers/nvidia_drv.so")
    edits = generator.common_edits(Options(), tree.host)
    assert edits.hooks[0].args[2:] == (
        "--link",
        f"../libnvidia-allocator.so.1::{LIB}/gbm/nvidia-drm_gbm.so",
        "--link",
        f"libnvidia-vulkan-producer.so.{VER}::{LIB}/libnvidia-vulkan-producer.so",
        "--link",
        f"libglxserver_nvidia.so.{VER}::{LIB}/nvidia/xorg/libglxserver_nvidia.so",
    )
    assert "/usr/lib/xorg/modules/drivers/nvidia_drv.so" in mounts(edits)


def test_a_vulkan_file_by_machine_is_found_in_the_driver_root_itself(tree: DriverTree) -> None:
    tree.driver("/driver-root")
    name = f"vulkan/icd.d/nvidia_icd.{tree.host.machine()}.json"
    tree.file(f"/driver-root/{name}")
    edits = generator.common_edits(Options(driver_root="/driver-root"), tree.host)
    assert mounts(edits)[f"/etc/{name}"] == f"/driver-root/{name}"


def test_firmware_is_found_where_the_kernel_looks_for_it(tree: DriverTree) -> None:
    tree.driver()
    tree.file("/sys/module/firmware_class/parameters/path", b"/opt/firmware\n")
    release = tree.host.kernel_release()
    places = ("/opt/firmware", f"/lib/firmware/updates/{release}", "/lib/firmware")
    for place in places:
        tree.file(f"{place}/nvidia/{VER}/gsp_ga10x.bin")
    tree.file(f"/lib/firmware/nvidia/{VER}/ucodes_gb20x.bin")
    tree.file("/lib/firmware/nvidia/1.2.3/gsp_ga10x.bin")
    found = [
        path for path in mounts(generator.common_edits(Options(), tree.host)) if ".bin" in path
    ]
    assert found == [
        *(f"{place}/nvidia/{VER}/gsp_ga10x.bin" for place in places),
        f"/lib/firmware/nvidia/{VER}/ucodes_gb20x.bin",
    ]


def test_sockets_are_mounted_writable_from_the_first_place_that_has_them(tree: DriverTree) -> None:
    tree.driver()
    tree.file("/var/run/nvidia-persistenced/socket")
    tree.file("/var/run/nvidia-fabricmanager/socket")
    tree.file("/run/nvidia-fabricmanager/socket")
    edits = generator.common_edits(Options(), tree.host)
    sockets = [mount for mount in edits.mounts if mount.container_path.endswith("/socket")]
    assert [mount.container_path for mount in sockets] == [
        "/var/run/nvidia-persistenced/socket",
        "/run/nvidia-fabricmanager/socket",
    ]
    assert {mount.options for mount in sockets} == {
        ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    }


def test_a_program_that_cannot_be_run_is_passed_over_for_the_next(tree: DriverTree) -> None:
    tree.driver()
    tree.file("/usr/local/bin/nvidia-smi", mode=0o644)
    edits = generator.common_edits(Options(), tree.host)
    assert [path for path in mounts(edits) if path.endswith("smi")] == ["/usr/bin/nvidia-smi"]


def test_a_root_without_a_driver_is_an_error_that_names_it(tree: DriverTree) -> None:
    tree.directory("/driver-root")
    with pytest.raises(DiscoveryError, match="driver-root"):
        generator.common_edits(Options(driver_root="/driver-root"), tree.host)


def test_another_version_than_nvmls_is_an_error(tree: DriverTree) -> None:
    tree.driver()
    with pytest.raises(DiscoveryError, match=r"570\.1\.2"):
        generator.common_edits(Options(driver_version="570.1.2"), tree.host)


def test_a_link_to_another_version_than_nvmls_is_an_error_with_both(tree: DriverTree) -> None:
    tree.driver()
    tree.link(f"{LIB}/libcuda.so.570.1.2", f"libcuda.so.{VER}")
    with pytest.raises(DiscoveryError, match=rf"570\.1\.2.*{VER}"):
        generator.common_edits(Options(driver_version="570.1.2"), tree.host)


def test_a_gpu_without_its_node_is_an_error_that_names_both(tree: DriverTree) -> None:
    tree.file("/dev/nvidia1")
    with pytest.raises(DiscoveryError, match=r"/dev/nvidia1 .*GPU-1"):
        generator.gpu_edits(Options(), GPU, tree.host)


@pytest.mark.parametrize(
    ("mode", "gid", "groups"), [(0o660, 44, (44,)), (0o666, 44, ()), (0o660, 0, ()), (0, 44, ())]
)
def test_a_group_is_added_only_where_it_opens_the_node(
    tree: DriverTree, mode: int, gid: int, groups: tuple[int, ...]
) -> None:
    tree.node("/dev/nvidia1", 195, 1, mode, gid)
    edits = generator.gpu_edits(Options(), GPU, tree.host)
    assert edits.additional_gids == groups
    assert edits.device_nodes[0].gid == (gid or None)
    assert edits.device_nodes[0].file_mode == (mode or None)


def test_drm_nodes_that_are_not_there_are_left_out_with_a_warning(
    tree: DriverTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.node("/dev/nvidia1", 195, 1)
    tree.node("/dev/dri/renderD129", 226, 129)
    for name in ("card2", "renderD129", "controlD64"):
        tree.file(f"/sys/bus/pci/devices/0000:3b:00.0/drm/{name}/dev")
    tree.link("/dev/dri/by-path/pci-0000:3b:00.0-card", "../card2")
    tree.link("/dev/dri/by-path/pci-0000:3b:00.0-render", "/dev/dri/renderD129")
    with caplog.at_level(logging.WARNING):
        edits = generator.gpu_edits(Options(), GPU, tree.host)
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia1", "/dev/dri/renderD129"]
    (record,) = caplog.records
    assert isinstance(record.args, tuple)
    assert record.args[0] == "/dev/dri/card2"
    link = "/dev/dri/renderD129::/dev/dri/by-path/pci-0000:3b:00.0-render"
    assert hooks(edits)["create-symlinks"] == ("--link", link)


def test_all_hooks_of_1_20_are_there_unless_they_are_off(tree: DriverTree) -> None:
    tree.driver()
    tree.node("/dev/nvidia1", 195, 1)
    options = Options(driver_root="/", target_driver_root="/host", ldconfig_path="/sbin/ldconfig")
    common = generator.common_edits(options, tree.host)
    assert common.hooks[-1].args == ("nvidia-cdi-hook", "update-application-profile")
    assert hooks(common)["update-ldcache"][:2] == ("--ldconfig-path", "/sbin/ldconfig")
    (limits,) = generator.gpu_edits(options, GPU, tree.host).hooks
    assert limits.hook_name == "createRuntime"
    assert limits.args[1:] == (
        "apply-cuda-memory-limits",
        "--driver-root",
        "/host",
        "--gpu-id",
        "GPU-1",
    )


def test_with_all_hooks_off_no_hook_is_written(tree: DriverTree) -> None:
    tree.driver()
    tree.node("/dev/nvidia1", 195, 1)
    options = Options(disabled_hooks={"all"})
    assert generator.common_edits(options, tree.host).hooks == ()
    assert generator.gpu_edits(options, GPU, tree.host).hooks == ()


def test_chmod_names_the_folders_of_nodes_and_is_not_written_for_none(tree: DriverTree) -> None:
    tree.node("/dev/nvidia1", 195, 1)
    options = Options(disabled_hooks={"all"}, enabled_hooks={HookName.CHMOD})
    assert generator.gpu_edits(options, GPU, tree.host).hooks == ()
    tree.node("/dev/dri/card2", 226, 2)
    tree.file("/sys/bus/pci/devices/0000:3b:00.0/drm/card2/dev")
    edits = generator.gpu_edits(options, GPU, tree.host)
    assert hooks(edits)["chmod"] == ("--mode", "755", "--path", "/dev/dri")


def test_a_hook_in_nvidia_ctk_is_called_as_its_sub_command(tree: DriverTree) -> None:
    tree.driver()
    options = Options(hook_path="/usr/bin/nvidia-ctk")
    for hook in generator.common_edits(options, tree.host).hooks:
        assert hook.path == "/usr/bin/nvidia-ctk"
        assert hook.args[:2] == ("nvidia-ctk", "hook")


def test_the_dev_root_is_the_driver_root_only_where_that_has_nodes(tree: DriverTree) -> None:
    tree.directory("/empty")
    tree.file("/file/dev/nvidia0")
    tree.node("/full/dev/nvidia0", 195, 0)
    assert driver_root.dev_root(tree.host, "/empty") == "/"
    assert driver_root.dev_root(tree.host, "/file") == "/"
    assert driver_root.dev_root(tree.host, "/full") == "/full"


@pytest.fixture
def written(tree: DriverTree) -> tuple[Options, ContainerEdits]:
    """The options and generated edits of a node whose driver is in a container."""
    tree.driver("/driver-root")
    tree.control_nodes("/driver-root")
    tree.node("/driver-root/dev/nvidia1", 195, 1)
    options = Options(driver_root="/driver-root", target_driver_root="/run/nvidia/driver")
    common = generator.common_edits(options, tree.host)
    return options, common + generator.gpu_edits(options, GPU, tree.host)


def test_nothing_is_missing_right_after_generation(
    tree: DriverTree, written: tuple[Options, ContainerEdits]
) -> None:
    assert generator.missing_paths(*written, tree.host) == []


def test_what_has_gone_or_become_another_device_is_missing(
    tree: DriverTree, written: tuple[Options, ContainerEdits]
) -> None:
    tree.remove("/driver-root/usr/bin/nvidia-smi")
    tree.remove("/driver-root/dev/nvidiactl")
    tree.remove("/driver-root/dev/nvidia-uvm")
    tree.node("/driver-root/dev/nvidia-uvm", 508, 0)
    assert generator.missing_paths(*written, tree.host) == [
        "/run/nvidia/driver/dev/nvidia-uvm",
        "/run/nvidia/driver/dev/nvidiactl",
        "/run/nvidia/driver/usr/bin/nvidia-smi",
    ]


def test_what_the_system_does_not_let_us_look_at_is_missing(
    tree: DriverTree, written: tuple[Options, ContainerEdits]
) -> None:
    options, _ = written
    long = f"/run/nvidia/driver/usr/lib/{'x' * 300}"
    device = DeviceNode(path=f"/run/nvidia/driver/dev/{'x' * 300}", major=195, minor=1)
    edits = ContainerEdits(device_nodes=(device,), mounts=(Mount(long, long),))
    assert generator.missing_paths(options, edits, tree.host) == [device.path, long]


def test_what_lies_outside_the_roots_is_missing(
    tree: DriverTree, written: tuple[Options, ContainerEdits]
) -> None:
    options, edits = written
    elsewhere = options.model_copy(update={"target_driver_root": "/opt/driver"})
    assert generator.missing_paths(elsewhere, ContainerEdits(mounts=edits.mounts), tree.host) == [
        mount.host_path for mount in edits.mounts
    ]
