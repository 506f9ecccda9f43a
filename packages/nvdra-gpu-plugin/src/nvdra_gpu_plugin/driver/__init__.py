# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver of the node: its files and its NVML sessions."""
