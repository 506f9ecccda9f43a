# SPDX-License-Identifier: Apache-2.0
"""The targets, one module for each program or kind of file."""
