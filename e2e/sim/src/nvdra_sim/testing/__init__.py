# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures of the simulator."""
