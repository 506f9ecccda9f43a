# SPDX-License-Identifier: Apache-2.0
"""Machines: groups of processes with namespaces of their own."""
