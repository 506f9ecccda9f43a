# SPDX-License-Identifier: Apache-2.0
"""`make demo`: from a bare machine to pods that hold simulated GPUs.

It acts on a cluster through the test framework, `nvdra_testing`.
"""
