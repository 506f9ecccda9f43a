# SPDX-License-Identifier: Apache-2.0
"""The errors of the runner for its user."""


class RealKernelError(Exception):
    """What is wrong, and what to do about it."""
