# SPDX-License-Identifier: Apache-2.0
"""Configuration files of a simulated node."""
