# SPDX-License-Identifier: Apache-2.0
"""nvidia-imex as a child process, and its readiness."""
