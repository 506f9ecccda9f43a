# SPDX-License-Identifier: Apache-2.0
"""Preparing and unpreparing claims for GPUs."""
