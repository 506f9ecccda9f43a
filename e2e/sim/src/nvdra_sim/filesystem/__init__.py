# SPDX-License-Identifier: Apache-2.0
"""Driver root, procfs, sysfs and device nodes of a simulated node."""
