# SPDX-License-Identifier: Apache-2.0
"""CDI edits and specs for NVIDIA GPUs, MIG devices and IMEX channels.

Callers use `generator`. It implements the modes `nvml`, `imex` and `management` of the NVIDIA
Container Toolkit, with the behaviour of version 1.20.1.
"""
