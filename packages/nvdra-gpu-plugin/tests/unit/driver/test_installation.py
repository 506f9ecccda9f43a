# SPDX-License-Identifier: Apache-2.0
"""What the node's files tell of the driver, also where they are odd or missing."""

import dataclasses
from pathlib import Path

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.driver import installation
from nvdra_runtime.node.host import Host

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
226 drm
510 nvidia-uvm

Block devices:
195 not-a-character-device
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "proc", tmp_path / "sys", tmp_path / "dev", tmp_path / "root")
    library = made.driver_root / "usr/lib64/libnvidia-ml.so.580.95.05"
    library.parent.mkdir(parents=True)
    library.touch()
    library.with_name("libnvidia-ml.so.1").symlink_to(library.name)
    for board in ("0000:ca:00.0", "0000:1B:00.0"):
        (made.proc / "driver/nvidia/gpus" / board).mkdir(parents=True)
    (made.sys / "module/nvidia").mkdir(parents=True)
    (made.sys / "module/nvidia/version").write_text("580.95.05\n")
    return made


def test_it_is_the_library_the_module_and_the_boards_in_the_order_of_the_bus(host: Host) -> None:
    found = installation.read(host)
    assert found.library.name == "libnvidia-ml.so.580.95.05"
    assert found.kernel_module == "580.95.05"
    assert found.gpus == ("0000:1b:00.0", "0000:ca:00.0")
    assert installation.read(host) == found


def test_a_library_that_was_replaced_under_its_name_is_another_one(host: Host) -> None:
    before = installation.read(host)
    before.library.rename(before.library.with_name("old"))
    before.library.touch()
    after = installation.read(host)
    assert after.library == before.library
    assert after.library_id != before.library_id


def test_a_node_without_a_driver_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"libnvidia-ml\.so\.1 is not in the driver root"):
        installation.read(Host(driver_root=tmp_path))


@pytest.mark.parametrize("place", ["driver_root", "proc", "sys"])
def test_a_file_that_cannot_be_read_is_not_taken_for_another_driver(
    host: Host, tmp_path: Path, place: str
) -> None:
    unreadable = dataclasses.replace(host, **{place: tmp_path / ("x" * 300)})
    with pytest.raises(OSError, match="File name too long"):
        installation.read(unreadable)


def test_a_node_whose_module_is_not_loaded_has_no_version_and_no_boards(host: Host) -> None:
    (host.sys / "module/nvidia/version").unlink()
    for board in (host.proc / "driver/nvidia/gpus").iterdir():
        board.rmdir()
    (host.proc / "driver/nvidia/gpus").rmdir()
    found = installation.read(host)
    assert (found.kernel_module, found.gpus) == ("", ())


UUID = "GPU-5f5c0f1e-7d67-4b1e-9b0b-0a1d2f3a4b5c"


@pytest.mark.parametrize(
    ("text", "minor", "uuid"),
    [
        (f"Model: \t\t H100\nGPU UUID: \t {UUID}\nDevice Minor: \t 3\n", 3, UUID),
        ("GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n", 0, None),
        ("Device Minor: \t unknown\nGPU UUID:\n", None, None),
        ("", None, None),
    ],
)
def test_a_board_is_named_by_what_the_module_says(
    host: Host, text: str, minor: int | None, uuid: str | None
) -> None:
    board = PciAddress("0000:ca:00.0")
    (host.proc / "driver/nvidia/gpus" / board / "information").write_text(text)
    assert installation.gpu_facts(host, board) == (minor, uuid)
    assert installation.gpu_facts(host, PciAddress("0000:ff:00.0")) == (None, None)


def test_majors_are_those_of_character_devices(host: Host) -> None:
    (host.proc / "devices").write_text(DEVICES)
    assert installation.drivers_by_major(host) == {
        1: {"mem"},
        195: {"nvidia", "nvidiactl"},
        226: {"drm"},
        510: {"nvidia-uvm"},
    }


def test_where_no_driver_of_nvidia_is_registered_nothing_can_be_told(host: Host) -> None:
    assert installation.drivers_by_major(host) == {}
    (host.proc / "devices").write_text("Character devices:\n  1 mem\n")
    assert installation.drivers_by_major(host) == {}
