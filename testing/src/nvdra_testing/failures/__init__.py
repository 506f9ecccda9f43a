# SPDX-License-Identifier: Apache-2.0
"""How failure reasons are provoked, raised and reported."""
