# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as values."""
