# SPDX-License-Identifier: Apache-2.0
"""The daemon of a ComputeDomain: runs nvidia-imex on one node and says whether it is ready."""
