# SPDX-License-Identifier: Apache-2.0
"""Which GPUs claims of virtual machines were refused lately because processes use them.

A GPU stays in it until nothing uses it any more, which is looked at every `LOOK_S` seconds, or
until a claim gets it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import PciAddress
from nvdra_runtime.node.host import Host
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.passthrough import holder_remedies, holders, pci_functions

LOG = logs.logger(__name__)

LOOK_S: Final = 10.0
"""Between two looks at who uses a GPU. One takes 0.2 s of a processor (`holders`)."""
CONSOLE: Final = "console"
"""What is named for a GPU that drives the node's screen: the kernel itself uses it."""
OWN_PROGRAMS: Final = "nvdra-"
"""How the names of processes begin whose NVML sessions are closed for a switch."""


Look = Callable[[PciAddress, str], Awaitable[str | None]]
"""Returns the command of a process that uses the GPU, which such a command did before; None if
there is none."""


class BusyGpus:
    """The GPUs of one node that are in use beside claims. It is used on the event loop."""

    def __init__(self) -> None:
        self._commands: dict[PciAddress, str] = {}
        self._has_some = asyncio.Event()
        self._on_change: list[Callable[[], None]] = []

    @property
    def commands(self) -> Mapping[PciAddress, str]:
        """The command of a process that uses the GPU, by the GPU; empty if it is not known."""
        return self._commands

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever `commands` has changed."""
        self._on_change.append(notify)

    @contextmanager
    def noted(self, pci: PciAddress) -> Iterator[None]:
        """Take note of whether the block is refused because the GPU is in use."""
        try:
            yield
        except DriverError as error:
            if error.reason is Reason.VFIO_DEVICE_BUSY:
                self._set(pci, error.facts.get("command", ""))
            raise
        self._set(pci, None)

    async def run(self, look: Look) -> None:
        """Look again and again at the GPUs. Run until cancelled."""
        while True:
            await self._has_some.wait()
            await asyncio.sleep(LOOK_S)
            for pci, former in tuple(self._commands.items()):
                try:
                    command = await look(pci, former)
                except DriverError as error:
                    LOG.warning("Cannot see who uses a GPU", pci=pci, error=str(error))
                    continue
                if pci in self._commands:  # no claim has got it meanwhile
                    self._set(pci, command)

    def _set(self, pci: PciAddress, command: str | None) -> None:
        if self._commands.get(pci) == command:
            return
        if command is None:
            del self._commands[pci]
            LOG.info("A GPU that virtual machines were refused is not in use any more", pci=pci)
        else:
            self._commands[pci] = command
            LOG.info("A GPU is in use, and refused to virtual machines", pci=pci, command=command)
        if self._commands:
            self._has_some.set()
        else:
            self._has_some.clear()
        for notify in self._on_change:
            notify()


def user_of(host: Host, processes: Path, pci: PciAddress, former: str = "") -> str | None:
    """The command of a process that keeps a GPU from being bound to vfio; None if there is none.

    This blocks for as long as a look at all processes of the node takes.

    Args:
        host: The node's files.
        processes: The node's procfs, with all its processes.
        pci: The GPU.
        former: What a claim was refused for. nvidia-persistenced has all GPUs open in persistence
            mode, and lets go of one that is bound; it counts if it is what has not.

    Raises:
        RetryableError: `VfioDeviceBusy`: it cannot be found out.
    """
    function = pci_functions.read_some(host, [pci]).functions.get(pci)
    if function is None or function.is_on_vfio:
        return None
    if function.is_boot_display and function.has_framebuffer:
        return CONSOLE
    daemon = holder_remedies.PERSISTENCED
    leaving = (OWN_PROGRAMS,) if former == daemon else (OWN_PROGRAMS, daemon)
    found = (
        holder.command
        for holder in holders.of_gpu(host, processes, function)
        if holder.keeps_driver and not holder.command.startswith(leaving)
    )
    return next(found, None)
