# SPDX-License-Identifier: Apache-2.0
"""A simulated NVIDIA driver installation that works with an unmodified pynvml."""
