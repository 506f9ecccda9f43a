# SPDX-License-Identifier: Apache-2.0
"""The machine that the procedures of `writes` run on: the state file, its files, its processes."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace

from nvdra_sim import gpu_binding
from nvdra_sim.description import DeviceNumber, Gpu
from nvdra_sim.filesystem import device_nodes, sysfs
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci import files, health_files, holders, modules
from nvdra_sim.pci.bus import NVIDIA_DRIVER, Bus
from nvdra_sim.pci.holders import Use
from nvdra_sim.state_file import clients, layout, pci_records
from nvdra_sim.state_file.state import State

DEVICE_FILE = "vfio-device"
CONTAINER_FILE = "vfio-container"
"""The memory files of `nvdra-sim-vmm`: kind, number of the group's or device's node, address."""


class StateMachine:
    """A node with a state file. It sees the changes of all programs, and makes files follow."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._generation = state.generation
        self._now = state.snapshot()
        self._bus = pci_records.read(self._now, state.description())
        self._files = files.of(self._bus, files.minors_of(self._now, state))
        self._uses: tuple[Use, ...] | None = None
        files.settle(state, self._files)

    @property
    def bus(self) -> Bus:
        """The bus as it is now; other programs change it, too."""
        self.refresh()
        return self._bus

    def refresh(self) -> None:
        """Makes the files follow what other programs have changed in the state file."""
        if self._state.generation == self._generation:
            return
        self._generation = self._state.generation
        self._now = self._state.snapshot()
        self._bus = pci_records.read(self._now, self._state.description())
        wanted = files.of(self._bus, files.minors_of(self._now, self._state))
        files.follow(self._state, self._files, wanted)
        self._files = wanted

    def look_again(self) -> None:
        """What processes have open is looked at anew: a request may come after a change of it."""
        self._uses = None

    def read_health_file(self, address: str, name: str, offset: int, size: int) -> bytes:
        """A read of a file of `health_files.CHANGING`. It may wake the function.

        Raises:
            OSError: The function is not on the bus.
        """
        self.look_again()
        function, state = self.bus.function(address), self.bus.state(address)
        if function is None or state is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        is_open = state.driver in modules.VFIO_DRIVERS and self.is_held(address)
        is_off = health_files.power_state(function, state, is_open=is_open) == "D3cold"
        wakes = is_off and name in health_files.READ_FROM_THE_FUNCTION
        # It is answered before the function sleeps again.
        content = health_files.contents(function, state, is_open=is_open or wakes)[name]
        if wakes and offset < len(content):  # the last read of a file does not get to the function
            woken = replace(state, wake_ups=state.wake_ups + 1)
            self.publish(pci_bus.with_state(self.bus, address, woken))
        return content[offset : offset + size]

    def publish(self, bus: Bus) -> None:
        """Makes this the bus of the node, and its files those of the bus."""
        with self._state.transaction() as now:
            gpu_binding.commit(self._state, now, bus)
        self.refresh()

    def is_held(self, address: str) -> bool:
        """Whether a user keeps the driver's remove of this function from returning."""
        function, state = self.bus.function(address), self.bus.states[address]
        if state.driver in modules.VFIO_DRIVERS:
            return any(self._is_of_device(use, address) for use in self._current_uses())
        if function is None or function.gpu is None or state.driver != NVIDIA_DRIVER:
            return False
        return self._is_gpu_used(function.gpu)

    def is_claimed(self, group: int) -> bool:
        """Whether a process owns the DMA of this IOMMU group."""
        if group not in pci_bus.groups_of_vfio(self.bus):
            return False
        addresses = {each.address for each in self.bus.in_group(group)}
        container = f"{CONTAINER_FILE} {self._bus.node.majors.vfio}:{group}"
        return any(
            use.name == container or any(self._is_of_device(use, each) for each in addresses)
            for use in self._current_uses()
        )

    def is_in_slot(self, address: str) -> bool:
        """Whether a rescan finds this function."""
        function = self.bus.function(address)
        board = None if function is None else function.gpu
        if function is not None and function.supplier is not None:
            supplier = self.bus.function(function.supplier)
            board = None if supplier is None else supplier.gpu
        return board is None or int(self._now.gpus[board.index].unplugged) != layout.OUT_OF_SLOT

    def clock(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def _is_gpu_used(self, gpu: Gpu) -> bool:
        """By descriptors, by mappings, by the kernel; without nodes, by what NVML says."""
        node, record = self._bus.node, self._now.gpus[gpu.index]
        numbers = {
            device_nodes.gpu_number(node, gpu, int(record.minor)),
            DeviceNumber(major=node.majors.drm, minor=sysfs.drm_card(gpu)),
            DeviceNumber(major=node.majors.drm, minor=sysfs.drm_render(gpu)),
        }
        paths = self._mapped_paths(gpu, record)
        if record.kernel_clients:
            return True
        if node.render.nodes == "table" and clients.uses_gpu(self._state, gpu.index):
            return True
        return any(use.number in numbers or use.name in paths for use in self._current_uses())

    def _mapped_paths(self, gpu: Gpu, record: layout.GpuState) -> frozenset[str]:
        name = f"nvidia{record.minor}"
        root = self._state.dev_root
        return frozenset({f"/dev/{name}", *(() if root is None else (str(root / name),))})

    def _is_of_device(self, use: Use, address: str) -> bool:
        """An open device of vfio: by its own node, or got from its group."""
        number = self._bus.states[address].vfio_number
        major = self._bus.node.majors.vfio_devices
        if number is not None and use.number == DeviceNumber(major=major, minor=number):
            return True
        kind, _, rest = use.name.partition(" ")
        if kind != DEVICE_FILE:
            return False
        node, _, owner = rest.partition(" ")
        return owner == address and node.split(":")[0] in self._majors()

    def _majors(self) -> frozenset[str]:
        """Those of vfio, by which memory files of other nodes are told apart."""
        majors = self._bus.node.majors
        return frozenset({str(majors.vfio), str(majors.vfio_devices)})

    def _current_uses(self) -> tuple[Use, ...]:
        """What processes have open, as of the last request or tick."""
        if self._uses is None:
            records = self._now.gpus
            paths = (self._mapped_paths(gpu, records[gpu.index]) for gpu in self._bus.node.gpus)
            self._uses = tuple(holders.uses(frozenset().union(*paths)))
        return self._uses
