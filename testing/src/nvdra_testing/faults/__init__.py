# SPDX-License-Identifier: Apache-2.0
"""Disturbances of a component from outside."""
