# SPDX-License-Identifier: Apache-2.0
"""The state file of a node, which all processes that use NVML map into memory."""
