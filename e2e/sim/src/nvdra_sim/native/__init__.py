# SPDX-License-Identifier: Apache-2.0
"""The C parts of the simulator, compiled on first use."""
