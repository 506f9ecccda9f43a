# SPDX-License-Identifier: Apache-2.0
import pytest
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.filesystem import procfs
from nvdra_sim.filesystem.trees import File, Tree


def tree(profile: str, **sections: object) -> Tree:
    return procfs.tree(node_config.from_profile(profile, "node-0", sections))


def lines(entries: Tree, path: str) -> list[str]:
    entry = entries[path]
    assert isinstance(entry, File)
    return entry.content.decode().splitlines()


def majors(entries: Tree) -> dict[str, int]:
    """Names of the character section, read as the driver reads them."""
    content = lines(entries, "devices")
    section = content[content.index("Character devices:") + 1 : content.index("Block devices:")]
    rows = (line.split(maxsplit=1) for line in section if line)
    return {name: int(major) for major, name in rows}


def test_proc_devices_lists_the_majors_of_the_node() -> None:
    given = {"majors": {"nvidia-uvm": 235, "nvidia-caps": 236}}
    found = majors(tree("t4", node=given))
    assert {name: major for name, major in found.items() if name.startswith("nvidia")} == {
        "nvidia": 195,
        "nvidiactl": 195,
        "nvidia-modeset": 195,
        "nvidia-uvm": 235,
        "nvidia-caps": 236,
        "nvidia-caps-imex-channels": 506,
    }


def test_openable_nodes_move_the_gpu_major() -> None:
    found = majors(tree("t4", render={"nodes": "openable"}))
    assert (found["nvidia"], found["nvidiactl"], found["nvidia-modeset"]) == (1, 1, 195)


def test_without_the_kernel_module_proc_knows_nothing_of_nvidia() -> None:
    entries = tree("dgx-h100", driver={"module_loaded": False})
    assert entries.keys() == {"devices", "sys/kernel/random/boot_id"}
    assert not [name for name in majors(entries) if "nvidia" in name]


def test_the_boot_id_is_the_nodes() -> None:
    boot_id = "0d2f6c1e-7a44-4a53-9c7b-6a1f0a3f5d11"
    entries = tree("none", node={"boot_id": boot_id})
    assert lines(entries, "sys/kernel/random/boot_id") == [boot_id]


def test_the_version_file_carries_the_driver_version() -> None:
    first, second = lines(tree("none", driver={"version": "575.57.08"}), "driver/nvidia/version")
    assert first.startswith("NVRM version: ")
    assert "  575.57.08  " in first
    assert second.startswith("GCC version:  ")


def test_parameters_have_no_prefix_and_text_is_quoted() -> None:
    imex = {"channel_count": 64, "create_channel0": True}
    found = lines(tree("none", node={"imex": imex}), "driver/nvidia/params")
    assert {"ModifyDeviceFiles: 1", "DeviceFileMode: 438", 'RegistryDwords: ""'} <= set(found)
    assert {"ImexChannelCount: 64", "CreateImexChannel0: 1"} <= set(found)


def test_a_gpu_shows_its_identity() -> None:
    node = node_config.from_profile("dgx-h100-shuffled", "node-0")
    path = f"driver/nvidia/gpus/{node.gpus[2].bus_id}/information"
    found = dict(line.split(":", 1) for line in lines(procfs.tree(node), path))
    facts = {key: value.strip() for key, value in found.items()}
    assert facts["Model"] == "NVIDIA H100 80GB HBM3"
    assert facts["GPU UUID"] == node.gpus[2].uuid
    assert facts["Bus Location"] == "0000:75:00.0"
    assert facts["Device Minor"] == "7"
    assert facts["GPU Firmware"] == "580.95.05"


def test_a_gpu_that_is_passed_through_is_not_the_drivers() -> None:
    entries = tree("t4", overrides={"gpus": [{"index": 1, "bound_driver": "vfio-pci"}]})
    assert "driver/nvidia/gpus/0000:3b:00.0/information" in entries
    assert "driver/nvidia/gpus/0000:86:00.0/information" not in entries


def test_only_coherent_systems_have_a_numa_status() -> None:
    coherent = tree("gb200-nvl72")
    assert lines(coherent, "driver/nvidia/gpus/0000:3f:00.0/numa_status")[0] == "Node:\t\t10"
    assert not [path for path in tree("dgx-h100") if path.endswith("numa_status")]


@pytest.mark.parametrize(
    ("path", "minor", "mode"),
    [
        ("driver/nvidia/capabilities/mig/config", 1, 256),
        ("driver/nvidia/capabilities/mig/monitor", 2, 292),
        ("driver/nvidia/capabilities/fabric-imex-mgmt", 4323, 256),
        ("driver/nvidia-nvlink/capabilities/fabric-mgmt", 0, 256),
    ],
)
def test_a_capability_names_its_device_node(path: str, minor: int, mode: int) -> None:
    assert lines(tree("dgx-h100"), path) == [
        f"DeviceFileMinor: {minor}",
        f"DeviceFileMode: {mode}",
        "DeviceFileModify: 1",
    ]


def test_every_possible_mig_capability_has_a_minor_of_its_own() -> None:
    content = lines(tree("t4"), "driver/nvidia-caps/mig-minors")
    minors = {key: int(minor) for key, minor in (line.split() for line in content)}
    assert content[:2] == ["config 1", "monitor 2"]
    assert len(minors) == len(set(minors.values())) == 2 + 32 * 15 * 9
    assert minors["gpu0/gi0/access"] == 3
    assert minors["gpu1/gi2/access"] == 3 + 135 + 18
    assert minors["gpu1/gi2/ci3/access"] == 3 + 135 + 18 + 1 + 3
    assert max(minors.values()) < procfs.FABRIC_IMEX_CAP


def test_the_minors_of_other_capabilities_are_listed_too() -> None:
    entries = tree("t4")
    assert lines(entries, "driver/nvidia-caps/nvlink-minors") == ["fabric-mgmt 0"]
    assert lines(entries, "driver/nvidia-caps/sys-minors") == ["fabric-imex-mgmt 4323"]


@pytest.mark.parametrize("profile", hardware_catalog.profile_names())
def test_only_baseboards_with_switches_of_their_own_show_them(profile: str) -> None:
    switches = [path for path in tree(profile) if "nvidia-nvswitch/devices" in path]
    assert bool(switches) == profile.startswith(("dgx-", "hgx-"))


def test_mig_instances_have_access_files_that_agree_with_the_list_of_minors() -> None:
    cut = {
        "mode": True,
        "instances": [
            {"profile": "3g.40gb", "start": 4, "compute": ["2c", "1c"]},
            {"profile": "1g.10gb", "start": 0},
        ],
    }
    gpus = [{"index": 2, "mig": cut}]
    entries = tree("dgx-h100-shuffled", overrides={"gpus": gpus})
    found = {
        path.removeprefix("driver/nvidia/capabilities/"): lines(entries, path)
        for path in entries
        if path.startswith("driver/nvidia/capabilities/gpu")
    }
    assert found.keys() == {
        f"gpu7/mig/{path}/access" for path in ("gi2", "gi2/ci0", "gi2/ci1", "gi7")
    }
    listed = dict(line.split() for line in lines(entries, "driver/nvidia-caps/mig-minors"))
    for path, content in found.items():
        minor = listed[path.replace("/mig/", "/")]
        assert content == [
            f"DeviceFileMinor: {minor}",
            "DeviceFileMode: 292",
            "DeviceFileModify: 1",
        ]
