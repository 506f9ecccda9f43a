# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import sys
from pathlib import Path

import pytest
from nvdra_sim.testing.passthrough import processes
from nvdra_sim.testing.passthrough.board import BackEnd
from nvdra_sim.testing.passthrough.pci_files import OK, PciFiles, write
from nvdra_sim.testing.passthrough.processes import NotReached, Opened, Writer
from nvdra_sim.testing.real_kernel import machine

BACK_END = BackEnd(
    sys_root=Path("/sys"),
    dev_root=Path("/dev"),
    modules_root=Path("/lib/modules"),
    board=machine.BOARD,
    holder=["holder", "with an argument"],
    modprobe=["modprobe"],
    rmmod=["rmmod"],
    kernel_log=Path("/dev/kmsg"),
)


@pytest.mark.parametrize("log", [Path("/dev/kmsg"), None])
def test_a_back_end_survives_its_text(log: Path | None) -> None:
    expected = dataclasses.replace(BACK_END, kernel_log=log)
    assert BackEnd.from_json(expected.to_json()) == expected


def test_links_of_a_function_are_read(tmp_path: Path) -> None:
    address = "0000:01:00.0"
    directory = tmp_path / "bus/pci/devices" / address
    (directory / "vfio-dev/vfio3").mkdir(parents=True)
    (directory / "driver").symlink_to("../../drivers/vfio-pci")
    pci = PciFiles(tmp_path, tmp_path / "dev")
    assert pci.driver(address) == "vfio-pci"
    assert pci.group(address) is None
    assert pci.vfio_name(address) == "vfio3"


def test_the_error_of_a_write_is_its_result(tmp_path: Path) -> None:
    file = tmp_path / "bind"
    file.touch()
    assert write(file, "0000:01:00.0") == OK
    assert file.read_text() == "0000:01:00.0"
    assert write(Path("/dev/full"), "0000:01:00.0") == "ENOSPC"


def test_a_file_that_is_missing_is_no_refused_write(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "bind", "0000:01:00.0")


def test_a_writer_says_what_its_write_returns() -> None:
    assert Writer(Path("/dev/full"), "text").wait() == "ENOSPC"
    assert Writer(Path("/dev/null"), "text").wait() == OK


def test_a_writer_that_blocks_is_seen_in_proc(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    writer = Writer(pipe, "x" * 100_000)  # more than the 64 KiB of a pipe
    processes.wait_until(lambda: processes.state(writer.pid) == processes.SLEEPING, "it sleeps")
    assert processes.stays(lambda: not writer.has_ended, 0.2)
    assert writer.pid in processes.children(os.getpid())
    with pytest.raises(NotReached, match="is in state S"):
        writer.wait(0.1)
    writer.kill()
    assert writer.wait() == ""
    assert processes.state(writer.pid) is None
    os.close(reader)


def test_a_holder_holds_until_it_is_closed() -> None:
    said = '{"viable": true, "failed": null, "errno": null}'
    program = f"import sys; print({said!r}, flush=True); sys.stdin.read()"
    holder = processes.Holder([sys.executable, "-c", program], "group", "17")
    assert holder.opened == Opened(viable=True, failed=None, errno=None)
    assert processes.state(holder.pid) is not None
    holder.close()
    assert processes.state(holder.pid) is None


def test_the_holder_of_a_real_kernel_names_the_step_that_failed() -> None:
    holder = processes.Holder(processes.REAL_HOLDER, "device", "no-such-group", "0000:01:00.0")
    assert holder.opened == Opened(viable=None, failed="open", errno="ENOENT")
    holder.close()
