# SPDX-License-Identifier: Apache-2.0
"""The server of a node's sysfs: a FUSE file system whose control files behave as the kernel's."""
