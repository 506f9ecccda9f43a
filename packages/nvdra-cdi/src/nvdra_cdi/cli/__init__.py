# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-cdi`. Each subcommand is a module with a function `run`.

Nothing outside this package imports it.
"""
