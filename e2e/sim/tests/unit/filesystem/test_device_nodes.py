# SPDX-License-Identifier: Apache-2.0
import json

from nvdra_sim.configuration import node_config
from nvdra_sim.filesystem import device_nodes, procfs
from nvdra_sim.filesystem.trees import File, Link, Node, Tree


def tree(profile: str, **sections: object) -> Tree:
    return device_nodes.tree(node_config.from_profile(profile, "node-0", sections))


def numbers(entries: Tree) -> dict[str, tuple[int, int, int]]:
    return {
        path: (entry.device.major, entry.device.minor, entry.mode)
        for path, entry in entries.items()
        if isinstance(entry, Node)
    }


def test_a_node_has_its_control_devices_and_one_device_per_gpu() -> None:
    found = numbers(tree("a30", node={"iommu": {"enabled": False, "iommufd": False}}))
    assert found == {
        "nvidia0": (195, 0, 0o666),
        "nvidia1": (195, 1, 0o666),
        "nvidiactl": (195, 255, 0o666),
        "nvidia-modeset": (195, 254, 0o666),
        "nvidia-uvm": (507, 0, 0o666),
        "nvidia-uvm-tools": (507, 1, 0o666),
        "nvidia-caps/nvidia-cap1": (505, 1, 0o400),
        "nvidia-caps/nvidia-cap2": (505, 2, 0o444),
        "dri/card1": (226, 1, 0o660),
        "dri/card2": (226, 2, 0o660),
        "dri/renderD128": (226, 128, 0o660),
        "dri/renderD129": (226, 129, 0o660),
    }


def test_nodes_are_named_after_minors_and_display_links_after_addresses() -> None:
    entries = tree("mixed-shuffled")
    node = node_config.from_profile("mixed-shuffled", "node-0")
    assert {path for path in entries if path.startswith("nvidia") and path[6:].isdigit()} == {
        f"nvidia{gpu.minor}" for gpu in node.gpus
    }
    link = entries["dri/by-path/pci-0000:07:00.0-card"]
    assert link == Link("../card1")


def test_a_gpu_that_is_passed_through_has_vfio_nodes_instead() -> None:
    overrides = {"gpus": [{"index": 0, "bound_driver": "vfio-pci"}]}
    found = tree("a30", overrides=overrides)
    group = node_config.from_profile("a30", "node-0").gpus[0].iommu_group
    assert "nvidia0" not in found
    assert {"vfio/vfio", f"vfio/{group}", "vfio/devices/vfio0", "iommu"} <= found.keys()


def test_without_the_kernel_module_there_is_no_device() -> None:
    assert not [path for path in tree("a30", driver={"module_loaded": False}) if "nvidia" in path]


def test_nvidia_uvm_is_there_once_its_module_is_loaded_and_its_nodes_are_made() -> None:
    loaded, booted = numbers(tree("a30")), numbers(tree("a30", driver={"uvm_loaded": False}))
    assert loaded.keys() - booted.keys() == {"nvidia-uvm", "nvidia-uvm-tools"}
    node = node_config.from_profile("a30", "node-0", {"driver": {"uvm_loaded": False}})
    listing = procfs.tree(node)["devices"]
    assert isinstance(listing, File)
    assert b"nvidia-uvm" not in listing.content
    assert b" nvidia\n" in listing.content


def test_channel_0_exists_when_the_module_makes_it() -> None:
    imex = {"channel_count": 2048, "create_channel0": True}
    assert numbers(tree("none", node={"imex": imex}))["nvidia-caps-imex-channels/channel0"] == (
        506,
        0,
        0o666,
    )
    assert not [path for path in tree("none") if "imex" in path]


def test_a_table_stands_for_the_same_nodes() -> None:
    real = tree("dgx-h100")
    (path, entry) = next(iter(tree("dgx-h100", render={"nodes": "table"}).items()))
    assert path == device_nodes.TABLE
    assert isinstance(entry, File)
    rows = json.loads(entry.content)
    assert rows["/dev/nvidia3"] == {
        "type": "c",
        "major": 195,
        "minor": 3,
        "mode": 0o666,
        "uid": 0,
        "gid": 0,
    }
    assert {
        path.removeprefix("/dev/"): (row["major"], row["minor"], row["mode"])
        for path, row in rows.items()
    } == numbers(real)


def test_majors_agree_with_proc_devices() -> None:
    node = node_config.from_profile("t4", "node-0", {"node": {"majors": {"nvidia-uvm": 240}}})
    listing = procfs.tree(node)["devices"]
    assert isinstance(listing, File)
    assert b"240 nvidia-uvm\n" in listing.content
    assert numbers(device_nodes.tree(node))["nvidia-uvm"] == (240, 0, 0o666)


CUT = {
    "mode": True,
    "instances": [{"profile": "3g.40gb", "start": 4, "compute": ["2c", "1c"]}],
}


def test_mig_instances_have_their_capability_nodes() -> None:
    gpus = [{"index": 2, "mig": CUT}]
    found = numbers(tree("dgx-h100-shuffled", overrides={"gpus": gpus}))
    plain = numbers(tree("dgx-h100-shuffled"))
    minor = node_config.from_profile("dgx-h100-shuffled", "n").gpus[2].minor
    first = 3 + 135 * minor + 9 * 2
    assert {path: number for path, number in found.items() if path not in plain} == {
        f"nvidia-caps/nvidia-cap{cap}": (505, cap, 0o444) for cap in (first, first + 1, first + 2)
    }
