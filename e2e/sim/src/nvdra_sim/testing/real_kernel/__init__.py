# SPDX-License-Identifier: Apache-2.0
"""Tests on a real Linux kernel, in a virtual machine that needs no support of the processor.

QEMU emulates a machine with an IOMMU and PCI functions that stand in for GPUs. It boots Debian's
Linux with an initramfs that mounts the root of this machine, read-only below a file system in
memory, and runs pytest in it: the checkout, its environment and all libraries are those of this
machine, and the kernel, /sys, /dev and /proc are those of the guest.
"""
