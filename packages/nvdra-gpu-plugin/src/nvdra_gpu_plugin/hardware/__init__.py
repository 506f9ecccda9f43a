# SPDX-License-Identifier: Apache-2.0
"""Finds and verifies the node's GPUs through NVML, procfs and sysfs."""
