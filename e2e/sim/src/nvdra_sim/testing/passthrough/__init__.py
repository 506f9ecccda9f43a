# SPDX-License-Identifier: Apache-2.0
"""What tests of PCI passthrough need, on a real kernel and on the simulated one.

Plain operations on files below a sysfs root, and processes that write them or hold VFIO objects.
Nothing in it knows the simulator.
"""
