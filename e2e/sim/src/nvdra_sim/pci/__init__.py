# SPDX-License-Identifier: Apache-2.0
"""The PCI bus of a node: its functions, the drivers that they are bound to, and who uses them."""
