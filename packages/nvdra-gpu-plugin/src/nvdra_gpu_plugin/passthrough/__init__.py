# SPDX-License-Identifier: Apache-2.0
"""What passthrough of GPUs to virtual machines reads and writes of the host."""
