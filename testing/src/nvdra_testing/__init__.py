# SPDX-License-Identifier: Apache-2.0
"""Shared test code: clusters, nodes, kubelets, hardware, faults and crash campaigns."""
