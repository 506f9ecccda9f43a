# SPDX-License-Identifier: Apache-2.0
"""The virtual machine: its PCI functions, and the command that starts it. Nothing is started here.

NVMe disks and network cards have drivers of Linux whose `probe` and `remove` work without more. The
device "edu" has none, and is taken by the stand-in for NVIDIA's driver. Groups follow from the
place of a function: QEMU's root complex is a group for each slot, and what is behind a PCIe-to-PCI
bridge, or is one device without ACS behind a root port, shares one. Source: docs/pcie.txt of QEMU,
Documentation/driver-api/vfio.rst of Linux.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nvdra_sim.testing.passthrough.board import Board, Function
from nvdra_sim.testing.real_kernel.debian import Tree

BOARD = Board(
    first=Function("0000:00:05.0", "nvme"),
    second=Function("0000:00:06.0", "nvme"),
    pair=(Function("0000:02:01.0", "e1000"), Function("0000:02:02.0", "e1000")),
    bridge="0000:01:00.0",
    composite=(Function("0000:03:00.0", "nvidia"), Function("0000:03:00.1", "e1000e")),
    gpus=(Function("0000:00:0a.0", "nvidia"), Function("0000:00:0b.0", "nvidia")),
)
"""The functions of `DEVICES`, with the bus numbers that QEMU's firmware gives."""

NATIVE_DRIVERS = sorted({function.native for function in BOARD.functions} - {"nvidia"})
"""Those that modprobe loads. The stand-in for NVIDIA's is loaded as a file."""

DEVICES = (
    "intel-iommu,intremap=on",
    "nvme,drive=disk0,serial=first,addr=0x5",
    "nvme,drive=disk1,serial=second,addr=0x6",
    "pcie-root-port,id=port1,addr=0x7,chassis=1",
    "pcie-pci-bridge,id=bridge1,bus=port1",
    "e1000,bus=bridge1,addr=0x1,romfile=",
    "e1000,bus=bridge1,addr=0x2,romfile=",
    "pcie-root-port,id=port2,addr=0x8,chassis=2",
    "edu,bus=port2,addr=0x0.0,multifunction=on",
    "e1000e,bus=port2,addr=0x0.1,romfile=",
    "virtio-9p-pci,fsdev=root,mount_tag=host,addr=0x9",
    "edu,addr=0xa",
    "edu,addr=0xb",
)

BOOT_OPTIONS = (
    "console=ttyS0",
    "intel_iommu=on",
    "panic=-1",  # a panic ends QEMU at once, because of -no-reboot
    "loglevel=4",
    # Without it, about a fifth of all starts ended in a panic while the timer was set up, with
    # "IO-APIC + timer doesn't work": an emulated processor is too slow for that check.
    "no_timer_check",
)

MEMORY_MIB = 1024
PROCESSORS = 2


def command(tree: Tree, initramfs: Path, console: Path) -> list[str]:
    """The command that starts the machine.

    The kernel's console is written to a file. The second serial port is the standard output.

    Args:
        tree: The kernel and QEMU.
        initramfs: The file system that the kernel starts with.
        console: The file for the kernel's console.
    """
    return [
        *tree.command("usr/bin/qemu-system-x86_64", "qemu-system-x86_64"),
        *("-L", str(tree.root / "usr/share/qemu"), "-L", str(tree.root / "usr/share/seabios")),
        *("-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-smp", str(PROCESSORS), "-m", str(MEMORY_MIB)),
        *("-nodefaults", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{console}", "-serial", "stdio"),
        *_options("-blockdev", (_disk(number) for number in range(2))),
        *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
        *_options("-device", DEVICES),
        *("-kernel", str(tree.kernel), "-initrd", str(initramfs)),
        *("-append", " ".join(BOOT_OPTIONS)),
    ]


def _disk(number: int) -> str:
    return f"driver=null-co,node-name=disk{number},size=1048576,read-zeroes=on"


def _options(name: str, values: Iterable[str]) -> list[str]:
    return [part for value in values for part in (name, value)]
