# SPDX-License-Identifier: Apache-2.0
"""Gives up NVML for a time, so that an administrator can reset GPUs or replace the driver."""
