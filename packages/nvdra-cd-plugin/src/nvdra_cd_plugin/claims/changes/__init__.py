# SPDX-License-Identifier: Apache-2.0
"""What claims change on their node; each kind of change is a module."""
