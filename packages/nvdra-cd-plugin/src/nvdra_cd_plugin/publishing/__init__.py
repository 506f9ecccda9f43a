# SPDX-License-Identifier: Apache-2.0
"""Channels and daemons as devices of ResourceSlices."""
