# SPDX-License-Identifier: Apache-2.0
"""Whether another program, a device plugin, offers this node's GPUs beside this driver.

A device plugin does not know claims, and this driver does not see what a device plugin hands out,
so that two pods could meet on one GPU. The driver cannot prevent that; it says so.
"""
