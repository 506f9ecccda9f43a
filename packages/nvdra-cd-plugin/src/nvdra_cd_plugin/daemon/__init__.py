# SPDX-License-Identifier: Apache-2.0
"""The IMEX daemon of this node: its readiness, its pod, its files."""
