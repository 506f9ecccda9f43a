# SPDX-License-Identifier: Apache-2.0
"""Flags and environment variables of a component, read into one model."""
