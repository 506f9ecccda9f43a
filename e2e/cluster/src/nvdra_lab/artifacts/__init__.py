# SPDX-License-Identifier: Apache-2.0
"""Binaries and images that a lab runs, built once."""
