# SPDX-License-Identifier: Apache-2.0
"""How much code an operation of a component goes through: files, lines and depth, counted."""
