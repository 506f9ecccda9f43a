# SPDX-License-Identifier: Apache-2.0
"""The files that nvidia-imex reads."""
