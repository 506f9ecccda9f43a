# SPDX-License-Identifier: Apache-2.0
"""A second, small DRA driver on nvdra-api alone, for tests of the kubelet's behaviour.

`driver` is the program that runs on a node, `control_files` the instructions from the tests. It
imports nothing of the GPU plugin: nvdra-api offers everything that a driver needs.
"""
