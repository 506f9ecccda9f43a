# SPDX-License-Identifier: Apache-2.0
"""The node's membership in a ComputeDomain."""
