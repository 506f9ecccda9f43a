# SPDX-License-Identifier: Apache-2.0
"""The node: files, file system roots, the store of records, NVML.

`nvdra_runtime.node.nvml` needs the extra `node`.
"""
