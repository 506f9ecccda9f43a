# SPDX-License-Identifier: Apache-2.0
"""The directories of layers, from the mounts that containerd 2.1 returns for them."""

from nvdra_lab.artifacts import containerd_store

SNAPSHOTS = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
LOWEST = {
    "Type": "bind",
    "Source": f"{SNAPSHOTS}/1/fs",
    "Target": "",
    "Options": ["rw", "rbind"],
}
THIRD = {
    "Type": "overlay",
    "Source": "overlay",
    "Target": "",
    "Options": [
        "index=off",
        f"workdir={SNAPSHOTS}/3/work",
        f"upperdir={SNAPSHOTS}/3/fs",
        f"lowerdir={SNAPSHOTS}/2/fs:{SNAPSHOTS}/1/fs",
    ],
}


def test_a_layer_is_written_into_its_own_directory() -> None:
    assert containerd_store.written_directory(LOWEST) == f"{SNAPSHOTS}/1/fs"
    assert containerd_store.written_directory(THIRD) == f"{SNAPSHOTS}/3/fs"


def test_the_layers_below_are_read_from_the_lowest_on() -> None:
    below = containerd_store.lower_directories(THIRD)
    assert below == [f"{SNAPSHOTS}/1/fs", f"{SNAPSHOTS}/2/fs"]
