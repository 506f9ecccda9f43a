# SPDX-License-Identifier: Apache-2.0
"""Whole specs: GPUs and MIG devices by name, IMEX channels, the management device.

Source: docs/reference/cdi.md §§13, 17.
"""

from typing import Any

import pytest
from nvdra_cdi import validation
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, DeviceNode
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.options import (
    Feature,
    GatedMode,
    Gpu,
    HookName,
    MigDevice,
    Naming,
    NoDevice,
    Options,
)
from nvdra_testing.hardware.driver_tree import DriverTree

ONE = Gpu("GPU-1", 1, "00000000:3B:00.0", index=0)
TWO = Gpu("GPU-2", 0, "00000000:4B:00.0", index=1, has_mig_mode=True, is_coherent=True)
MIG = MigDevice("MIG-3", TWO, gpu_instance=5, compute_instance=1, index=0)
ALL: list[Gpu | MigDevice] = [ONE, TWO, MIG]


@pytest.fixture
def node(tree: DriverTree) -> DriverTree:
    tree.driver()
    tree.control_nodes()
    for minor in (0, 1):
        tree.node(f"/dev/nvidia{minor}", 195, minor)
    tree.file("/proc/devices", b"Character devices:\n505 nvidia-caps\n")
    return tree


# Which devices


@pytest.mark.parametrize(
    ("identifiers", "chosen"),
    [
        ([], [ONE, MIG]),
        (["all"], [ONE, MIG]),
        (["1", "all", "none"], [ONE, MIG]),
        (["none", "all"], [NoDevice()]),
        (["0"], [ONE]),
        (["1"], [TWO]),
        (["1:0", "GPU-1"], [MIG, ONE]),
        (["MIG-GPU-2/5/1", "MIG-3", "1:0"], [MIG]),
        (["GPU-2"], [TWO]),
    ],
)
def test_identifiers_choose_devices(
    identifiers: list[str], chosen: list[Gpu | MigDevice | NoDevice]
) -> None:
    assert generator.select(ALL, identifiers) == chosen


@pytest.mark.parametrize("identifier", ["2", "0:0", "GPU-9", "MIG-GPU-2/5/0", "", "gpu0"])
def test_an_identifier_of_no_device_is_an_error_that_lists_them(identifier: str) -> None:
    with pytest.raises(DiscoveryError, match=rf"{identifier} on this node; it has 0, 1, 1:0"):
        generator.select(ALL, ["0", identifier])


def test_each_device_appears_once_per_naming(node: DriverTree) -> None:
    spec = generator.nvml_spec(Options(), [ONE, MIG], tuple(Naming), host=node.host)
    names = [device.name for device in spec.devices]
    assert names == ["0", "1:0", "GPU-1", "MIG-3", "gpu0", "mig1:0"]
    by_name = {device.name: device.container_edits for device in spec.devices}
    assert by_name["1:0"] == by_name["MIG-3"] == by_name["mig1:0"]
    assert validation.problems(spec) == ()


def test_none_is_a_device_that_gives_nothing_but_a_mark(node: DriverTree) -> None:
    spec = generator.nvml_spec(Options(), [NoDevice()], host=node.host)
    (device,) = spec.devices
    assert (device.name, device.container_edits.env) == ("none", ("NVCT_EMPTY_DEVICE=",))


def test_a_node_without_devices_has_no_spec(node: DriverTree) -> None:
    with pytest.raises(DiscoveryError, match="no GPUs or MIG devices"):
        generator.nvml_spec(Options(), [], host=node.host)


# Features


def test_coherence_is_told_in_annotations_of_whole_gpus_on_request(node: DriverTree) -> None:
    options = Options(features={Feature.COHERENT_ANNOTATIONS})
    spec = generator.nvml_spec(options, [ONE, TWO, MIG], [Naming.INDEX], host=node.host)
    assert {device.name: dict(device.annotations) for device in spec.devices} == {
        "0": {"gpu.nvidia.com/coherent": "false"},
        "1": {"gpu.nvidia.com/coherent": "true"},
        "1:0": {},
    }
    plain = generator.nvml_spec(Options(), [ONE], [Naming.INDEX], host=node.host)
    assert dict(plain.devices[0].annotations) == {}


def test_groups_are_left_out_on_request(node: DriverTree) -> None:
    node.node("/dev/nvidia1", 195, 1, 0o660, 44)
    assert generator.gpu_edits(Options(), ONE, node.host).additional_gids == (44,)
    options = Options(features={Feature.NO_ADDITIONAL_GIDS})
    assert generator.gpu_edits(options, ONE, node.host).additional_gids == ()


def test_sockets_are_left_out_on_request_and_the_mps_directory_unless_asked_for(
    node: DriverTree,
) -> None:
    node.file("/run/nvidia-persistenced/socket")
    node.directory("/tmp")
    node.directory("/tmp/nvidia-mps")

    def ipc(**options: Any) -> list[str]:
        edits = generator.common_edits(Options(**options), node.host)
        return [mount.container_path for mount in edits.mounts if "noexec" in mount.options]

    assert ipc() == ["/run/nvidia-persistenced/socket"]
    assert ipc(mps_pipe="auto") == ["/run/nvidia-persistenced/socket", "/tmp/nvidia-mps"]
    assert ipc(mps_pipe="auto", features={Feature.NO_IPC}) == []


def test_sockets_are_generated_apart_from_the_other_common_edits(node: DriverTree) -> None:
    """A caller that keeps a spec adds those of the services that run now."""
    assert generator.ipc_edits(Options(), node.host) == ContainerEdits()
    node.file("/run/nvidia-fabricmanager/socket")
    together = generator.common_edits(Options(), node.host)
    without = generator.common_edits(Options(features={Feature.NO_IPC}), node.host)
    sockets = generator.ipc_edits(Options(), node.host)
    assert [mount.container_path for mount in sockets.mounts] == [
        "/run/nvidia-fabricmanager/socket"
    ]
    assert set(together.mounts) == {*without.mounts, *sockets.mounts}
    assert generator.ipc_edits(Options(features={Feature.NO_IPC}), node.host) == ContainerEdits()


def test_libraries_and_configuration_are_looked_for_elsewhere_on_request(node: DriverTree) -> None:
    node.library("/opt/lib/libcuda.so.570.1.2", "libcuda.so.1")
    node.file("/opt/etc/glvnd/egl_vendor.d/10_nvidia.json")
    node.file("/usr/share/nvidia/nvoptix.bin")
    options = Options(library_search_paths=("/opt/lib",), config_search_paths=("/opt/etc",))
    mounts = generator.common_edits(options, node.host).mounts
    assert {mount.container_path: mount.host_path for mount in mounts} == {
        "/opt/lib/libcuda.so.570.1.2": "/opt/lib/libcuda.so.570.1.2",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": (
            "/opt/etc/glvnd/egl_vendor.d/10_nvidia.json"
        ),
        "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    }


# IMEX channels


CHANNELS = "/dev/nvidia-caps-imex-channels"


@pytest.fixture
def channels(tree: DriverTree) -> DriverTree:
    for number in (0, 7, 10):
        tree.node(f"{CHANNELS}/channel{number}", 506, number)
    tree.file(f"{CHANNELS}/channel3")
    tree.node(f"{CHANNELS}/channelx", 506, 99)
    return tree


@pytest.mark.parametrize(
    ("identifiers", "names"),
    [
        (["all"], ["0", "10", "7"]),
        (["7"], ["7"]),
        (["channel10", "0", "10"], ["0", "10"]),
    ],
)
def test_channels_are_called_by_their_numbers(
    channels: DriverTree, identifiers: list[str], names: list[str]
) -> None:
    spec = generator.imex_spec(Options(), identifiers, host=channels.host)
    assert [device.name for device in spec.devices] == names
    assert (spec.kind, spec.version) == ("nvidia.com/imex-channel", "0.5.0")
    assert spec.container_edits == ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))
    assert validation.problems(spec) == ()


def test_a_channel_is_its_node_on_the_host_and_the_runtime_asks_for_its_numbers(
    channels: DriverTree,
) -> None:
    for number in (0, 10):
        channels.node(f"/other{CHANNELS}/channel{number}", 506, number)
    options = Options(dev_root="/other", target_dev_root="/host")
    spec = generator.imex_spec(options, ["10"], host=channels.host)
    assert spec.devices[0].container_edits.device_nodes == (
        DeviceNode(f"{CHANNELS}/channel10", f"/host{CHANNELS}/channel10", "c"),
    )


@pytest.mark.parametrize("identifier", ["-1", "1048576", "channel", "x", "٣", "channel7 "])
def test_what_is_no_channel_is_refused_with_the_range(
    channels: DriverTree, identifier: str
) -> None:
    with pytest.raises(DiscoveryError, match="use 0 to 1048575"):
        generator.imex_spec(Options(), [identifier], host=channels.host)


@pytest.mark.parametrize("identifier", ["3", "4", "1048575"])
def test_a_channel_without_a_node_is_an_error_that_names_it(
    channels: DriverTree, identifier: str
) -> None:
    with pytest.raises(DiscoveryError, match=rf"channels/channel{identifier}:"):
        generator.imex_spec(Options(), [identifier], host=channels.host)


def test_without_any_channel_there_is_no_spec(tree: DriverTree) -> None:
    with pytest.raises(DiscoveryError, match="no IMEX channel has a device node"):
        generator.imex_spec(Options(), host=tree.host)


# Management


@pytest.fixture
def managed(node: DriverTree) -> DriverTree:
    node.node("/dev/nvidia-caps/nvidia-cap1", 505, 1, 0o400)
    node.node("/dev/nvidia-caps/nvidia-cap21", 505, 21, 0o444)
    node.node(f"{CHANNELS}/channel0", 506, 0)
    for other in ("nvidia-nvswitch0", "nvidia-nvswitchctl", "nvidia-nvlink", "nvidia-fs0"):
        node.node(f"/dev/{other}", 500, 0)
    node.file("/usr/bin/nvidia-xconfig", mode=0o755)
    node.file("/usr/share/nvidia/nvoptix.bin")
    return node


def test_management_is_every_node_of_the_driver_and_no_graphics(managed: DriverTree) -> None:
    spec = generator.management_spec(Options(), host=managed.host)
    (device,) = spec.devices
    assert (spec.kind, device.name) == ("management.nvidia.com/gpu", "all")
    assert [one.path for one in device.container_edits.device_nodes] == [
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
        f"{CHANNELS}/channel0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap21",
    ]
    assert spec.container_edits.device_nodes == ()
    assert [mount.container_path for mount in spec.container_edits.mounts] == [
        "/usr/bin/nvidia-smi",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05",
    ]
    assert [hook.args[1] for hook in spec.container_edits.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
    ]
    assert validation.problems(spec) == ()


def test_management_keeps_device_nodes_from_being_made_only_when_asked_to(
    managed: DriverTree,
) -> None:
    hook = HookName.DISABLE_DEVICE_NODE_MODIFICATION
    spec = generator.management_spec(Options(enabled_hooks={hook}), host=managed.host)
    assert spec.container_edits.hooks[-1].args[1] == hook


def test_management_opens_the_folders_of_nodes_when_asked_to(managed: DriverTree) -> None:
    spec = generator.management_spec(Options(enabled_hooks={HookName.CHMOD}), host=managed.host)
    (hook,) = spec.devices[0].container_edits.hooks
    assert hook.args[1:] == ("chmod", "--mode", "755", "--path", "/dev/nvidia-caps")


def test_management_needs_no_gpu_but_some_node(tree: DriverTree) -> None:
    tree.driver()
    with pytest.raises(DiscoveryError, match="no NVIDIA device node"):
        generator.management_spec(Options(), host=tree.host)
    tree.node("/dev/nvidiactl", 195, 255)
    assert len(generator.management_spec(Options(), host=tree.host).devices) == 1


# Devices of other drivers


@pytest.fixture
def others(tree: DriverTree) -> DriverTree:
    for number, path in enumerate(
        (
            *("nvidia-fs0", "nvidia-fs1", "nvidia-fs10", "gdrdrv"),
            *("infiniband/uverbs0", "infiniband/uverbs1", "infiniband/rdma_cm", "infiniband/umad0"),
            *("nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch1", "nvidia-nvlink"),
            *("nvidia0", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"),
        )
    ):
        tree.node(f"/dev/{path}", 500, number + 1)
    tree.file("/dev/nvidia-fs99")
    tree.file("/proc/driver/nvidia-caps/mig-minors", b"config 1\nmonitor 2\ngpu0/gi0/access 3\n")
    return tree


@pytest.mark.parametrize(
    ("mode", "nodes"),
    [
        ("gds", ["/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/nvidia-fs10"]),
        ("gdrcopy", ["/dev/gdrdrv"]),
        (
            "mofed",
            ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"],
        ),
        (
            "nvswitch",
            ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitch1", "/dev/nvidia-nvswitchctl"],
        ),
    ],
)
def test_a_gated_mode_gives_one_device_with_the_nodes_of_its_driver(
    others: DriverTree, mode: str, nodes: list[str]
) -> None:
    spec = generator.gated_spec(Options(), GatedMode(mode), host=others.host)
    (device,) = spec.devices
    assert (spec.kind, device.name) == (f"nvidia.com/{mode}", "all")
    assert [node.path for node in device.container_edits.device_nodes] == nodes
    assert {node.major for node in device.container_edits.device_nodes} == {500}
    assert spec.container_edits == ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))
    assert validation.problems(spec) == ()


def test_gds_mounts_the_files_of_the_driver_root_that_exist(others: DriverTree) -> None:
    others.directory("/run")
    others.directory("/run/udev")
    others.file("/etc/cufile.json")
    spec = generator.gated_spec(
        Options(target_driver_root="/host", target_dev_root="/"), GatedMode.GDS, host=others.host
    )
    mounts = spec.devices[0].container_edits.mounts
    assert [(mount.host_path, mount.container_path) for mount in mounts] == [
        ("/host/etc/cufile.json", "/etc/cufile.json"),
        ("/host/run/udev", "/run/udev"),
    ]
    assert {mount.options for mount in mounts} == {("ro", "nosuid", "nodev", "rbind", "rprivate")}


@pytest.mark.parametrize("mode", GatedMode)
def test_a_gated_mode_without_its_driver_is_an_error_that_names_the_nodes(
    tree: DriverTree, mode: GatedMode
) -> None:
    tree.file("/etc/cufile.json")
    with pytest.raises(DiscoveryError, match=rf"no device node /dev/.* for {mode} below"):
        generator.gated_spec(Options(), mode, host=tree.host)


def test_the_capabilities_of_mig_management_are_devices_by_their_names(others: DriverTree) -> None:
    spec = generator.mig_capability_spec(Options(), ["monitor", "config"], host=others.host)
    assert spec.kind == "nvidia.com/mig-caps"
    assert {
        device.name: [node.path for node in device.container_edits.device_nodes]
        for device in spec.devices
    } == {"config": ["/dev/nvidia-caps/nvidia-cap1"], "monitor": ["/dev/nvidia-caps/nvidia-cap2"]}
    assert validation.problems(spec) == ()


def test_a_capability_that_is_not_there_is_an_error_that_says_which(others: DriverTree) -> None:
    def refused(*identifiers: str) -> str:
        with pytest.raises(DiscoveryError) as caught:
            generator.mig_capability_spec(Options(), identifiers, host=others.host)
        return str(caught.value)

    assert refused("config", "all") == "'all' is not a MIG capability: use config or monitor"
    assert refused() == "no MIG capability is asked for: use config or monitor"
    others.remove("/dev/nvidia-caps/nvidia-cap2")
    assert "no device node /dev/nvidia-caps/nvidia-cap2 below" in refused("monitor")
    others.file("/proc/driver/nvidia-caps/mig-minors", b"monitor x\n")
    assert "mig-minors below" in refused("monitor")
    others.remove("/proc/driver/nvidia-caps/mig-minors")
    assert "cannot have MIG devices" in refused("config")
