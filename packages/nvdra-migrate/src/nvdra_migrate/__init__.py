# SPDX-License-Identifier: Apache-2.0
"""Moves an installation of the reference driver, dra-driver-nvidia-gpu, to nvdra.

The command is `nvdra-migrate`. `migration.migrate` is what it does, without files.
"""
