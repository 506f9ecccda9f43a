# SPDX-License-Identifier: Apache-2.0
"""This daemon's entry among the daemons of its clique."""
