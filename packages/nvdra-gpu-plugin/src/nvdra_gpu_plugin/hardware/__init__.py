"""Finds and verifies the node's GPUs through NVML, procfs and sysfs."""
