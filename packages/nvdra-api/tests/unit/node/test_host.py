# SPDX-License-Identifier: Apache-2.0
"""Host: boot id, and the driver's files with links that mean places in the driver's root."""

from pathlib import Path
from typing import Any

import pytest
from nvdra_runtime.node.host import Host, resolve_in_root

LIBRARY = "libnvidia-ml.so.1"


def make(path: Path, text: str = "") -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(path: Path, target: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_the_boot_id_is_read_from_the_proc_root(tmp_path: Path) -> None:
    make(tmp_path / "sys/kernel/random/boot_id", "4d1f-boot\n")
    assert Host(proc=tmp_path).boot_id() == "4d1f-boot"


@pytest.mark.parametrize(
    "directory",
    [
        "",
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "lib64",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
        "usr/lib",
        "lib",
    ],
)
def test_a_library_is_found_where_distributions_put_it(tmp_path: Path, directory: str) -> None:
    library = make(tmp_path / directory / LIBRARY)
    assert Host(driver_root=tmp_path).find_library(LIBRARY) == library


def test_of_two_places_the_first_one_counts(tmp_path: Path) -> None:
    make(tmp_path / "lib64" / LIBRARY)
    first = make(tmp_path / "usr/lib64" / LIBRARY)
    assert Host(driver_root=tmp_path).find_library(LIBRARY) == first


def test_a_directory_of_the_same_name_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64" / LIBRARY).mkdir(parents=True)
    library = make(tmp_path / "lib64" / LIBRARY)
    assert Host(driver_root=tmp_path).find_library(LIBRARY) == library


def test_links_are_followed_to_the_file_itself(tmp_path: Path) -> None:
    real = make(tmp_path / "usr/lib64/libnvidia-ml.so.580.95.05")
    link(tmp_path / "usr/lib64" / LIBRARY, real.name)
    assert Host(driver_root=tmp_path).find_library(LIBRARY) == real


def test_an_absolute_link_means_a_place_in_the_root(tmp_path: Path) -> None:
    real = make(tmp_path / "opt/driver/libnvidia-ml.so.580.95.05")
    link(tmp_path / "usr/lib64" / LIBRARY, "/opt/driver/libnvidia-ml.so.580.95.05")
    link(tmp_path / "lib64", "/usr/lib64")
    assert Host(driver_root=tmp_path).find_library(LIBRARY) == real
    assert resolve_in_root(tmp_path, (tmp_path / "lib64" / LIBRARY).relative_to(tmp_path)) == real


def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(tmp_path / LIBRARY)
    link(root / "usr/lib64" / LIBRARY, f"../../../{LIBRARY}")
    with pytest.raises(FileNotFoundError):
        Host(driver_root=root).find_library(LIBRARY)


def test_links_in_a_circle_are_nothing(tmp_path: Path) -> None:
    link(tmp_path / "usr/lib64" / LIBRARY, LIBRARY)
    with pytest.raises(FileNotFoundError):
        Host(driver_root=tmp_path).find_library(LIBRARY)


def test_a_link_that_leads_nowhere_does_not_hide_a_later_place(tmp_path: Path) -> None:
    link(tmp_path / "usr/lib64" / LIBRARY, "/nowhere")
    library = make(tmp_path / "lib64" / LIBRARY)
    assert Host(driver_root=tmp_path).find_library(LIBRARY) == library


def test_what_is_not_there_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Host(driver_root=tmp_path).find_library(LIBRARY)
    for part in (LIBRARY, str(tmp_path), "usr/lib64", "lib64", "--container-driver-root"):
        assert part in str(caught.value)


def test_what_is_not_there_is_told_with_the_path_on_the_node(tmp_path: Path) -> None:
    link(tmp_path / "current", "/opt/nvidia/580")
    for root in (tmp_path, tmp_path / "current"):
        host = Host(driver_root=root, node_driver_root=Path("/opt/nvidia"))
        with pytest.raises(FileNotFoundError) as caught:
            host.find_library(LIBRARY)
        assert f"the driver root /opt/nvidia of the node ({root} in this container)" in str(
            caught.value
        )


def test_a_root_that_is_a_link_of_the_node_is_told_with_where_it_leads(tmp_path: Path) -> None:
    link(tmp_path / "current", "/opt/nvidia/580")
    with pytest.raises(FileNotFoundError) as caught:
        Host(driver_root=tmp_path / "current").find_library(LIBRARY)
    assert "is a link to /opt/nvidia/580" in str(caught.value)
    library = make(tmp_path / "580/lib64" / LIBRARY)
    (tmp_path / "current").unlink()
    link(tmp_path / "current", "580")
    assert Host(driver_root=tmp_path / "current").find_library(LIBRARY).samefile(library)


def test_a_program_is_found_in_the_first_directory_that_has_it(tmp_path: Path) -> None:
    host = Host(driver_root=tmp_path)
    with pytest.raises(FileNotFoundError, match="nvidia-smi is not in the driver root"):
        host.find_program("nvidia-smi")
    for directory in ("usr/bin", "opt/bin"):
        program = tmp_path / directory / "nvidia-smi"
        program.parent.mkdir(parents=True)
        program.touch()
        assert host.find_program("nvidia-smi") == program
