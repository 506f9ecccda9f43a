# SPDX-License-Identifier: Apache-2.0
"""A kernel with functions that a test rebinds. After it, processes end and drivers return."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nvdra_sim.testing.passthrough.board import BackEnd, Function
from nvdra_sim.testing.passthrough.pci_files import CLEAR, NO_OVERRIDE, OK, VFIO, PciFiles
from nvdra_sim.testing.passthrough.processes import (
    GPU_HOLDER,
    PATIENCE_S,
    Holder,
    Writer,
    kernel_lines,
    wait_until,
)


class Host:
    """A kernel, and the processes that a test starts on it.

    Attributes:
        board: The functions.
        pci: Their files.
        vfio_nodes: As `/dev/vfio`.
    """

    def __init__(self, back_end: BackEnd) -> None:
        self.back_end = back_end
        self.board = back_end.board
        self.pci = PciFiles(back_end.sys_root, back_end.dev_root)
        self.vfio_nodes = self.pci.vfio_nodes
        self._holders: list[Holder] = []
        self._writers: list[Writer] = []

    def start_writer(self, path: Path, text: str, around: Sequence[str] = ()) -> Writer:
        """Start a process that makes one write."""
        writer = Writer(path, text, around)
        self._writers.append(writer)
        return writer

    def start_unbind(self, function: Function, around: Sequence[str] = ()) -> Writer:
        """Start a process that unbinds a function from the driver that it has."""
        driver = self.pci.driver(function.address)
        assert driver is not None, f"{function.address} has no driver"
        return self.start_writer(self.pci.unbind_file(driver), function.address, around)

    def hold_device(self, function: Function) -> Holder:
        """Start a process that opens the device of a function, as a virtual machine does."""
        return self._start_vfio_holder("device", self.group(function), function.address)

    def hold_group(self, function: Function) -> Holder:
        """Start a process that opens the group of a function and no device."""
        return self._start_vfio_holder("group", self.group(function))

    def hold_gpu(self, node: Path) -> Holder:
        """Start a process that has the node of a GPU open."""
        return self._start_holder(GPU_HOLDER, "open", str(node))

    def map_gpu(self, node: Path) -> Holder:
        """Start a process that has closed the node of a GPU, and keeps a mapping of it."""
        return self._start_holder(GPU_HOLDER, "map", str(node))

    def is_viable(self, function: Function) -> bool | None:
        """What the status of the group says; None if it cannot be opened."""
        return self._start_vfio_holder("status", self.group(function)).opened.viable

    def group(self, function: Function) -> str:
        """The number of the group of a function."""
        group = self.pci.group(function.address)
        assert group is not None, f"{function.address} has no IOMMU group"
        return group

    def group_node(self, function: Function) -> Path:
        """`/dev/vfio/<group>`."""
        return self.vfio_nodes / self.group(function)

    def to_vfio(self, function: Function) -> None:
        """Bind a function to vfio-pci: override, unbind, bind."""
        address, pci = function.address, self.pci
        assert pci.set_override(address, VFIO) == OK
        former = pci.driver(address)
        if former is not None:
            assert pci.unbind(former, address) == OK
        assert pci.bind(VFIO, address) == OK
        assert pci.driver(address) == VFIO
        # The kernel makes device nodes in a thread of its own, devtmpfsd.
        wait_until(self.group_node(function).is_char_device, f"{self.group_node(function)} exists")

    def make_driverless(self, function: Function) -> None:
        """Unbind a function from its native driver."""
        assert self.pci.unbind(function.native, function.address) == OK
        assert self.pci.driver(function.address) is None

    def modprobe(self, *arguments: str) -> int:
        """Run modprobe. Returns its exit status."""
        return _run([*self.back_end.modprobe, *arguments])

    def rmmod(self, module: str) -> int:
        """Run rmmod. Returns its exit status."""
        return _run([*self.back_end.rmmod, module])

    def kernel_lines(self) -> list[str] | None:
        """What the kernel's log has now; None of a simulated kernel."""
        log = self.back_end.kernel_log
        return None if log is None else list(kernel_lines(log))

    def close(self) -> None:
        """End what was started. Writers that block end when nothing is held any more."""
        for holder in self._holders:
            holder.kill()
        for writer in self._writers:
            writer.wait()

    def restore(self) -> None:
        """Load vfio-pci, clear all overrides, and give each function to its native driver."""
        if not self.pci.has_driver(VFIO):
            assert self.modprobe(VFIO) == 0
        for function in self.board.functions:
            self._restore(function)

    def _restore(self, function: Function) -> None:
        address, pci = function.address, self.pci
        if not pci.device(address).exists():
            assert pci.rescan() == OK
        if pci.override(address) != NO_OVERRIDE:
            assert pci.set_override(address, CLEAR) == OK
        driver = pci.driver(address)
        if driver != function.native:
            if driver is not None:
                assert pci.unbind(driver, address) == OK
            assert pci.probe(address) == OK
        wait_until(lambda: pci.driver(address) == function.native, f"{address} has its driver")

    def _start_vfio_holder(self, *arguments: str) -> Holder:
        return self._start_holder(self.back_end.holder, *arguments)

    def _start_holder(self, command: Sequence[str], *arguments: str) -> Holder:
        holder = Holder(command, *arguments)
        self._holders.append(holder)
        return holder


@contextmanager
def restored(back_end: BackEnd) -> Iterator[Host]:
    """A host whose functions are on their native drivers, before the block and after it."""
    host = Host(back_end)
    host.restore()
    try:
        yield host
    finally:
        host.close()
        host.restore()


def _run(command: Sequence[str]) -> int:
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    return done.returncode
