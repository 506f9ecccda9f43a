# SPDX-License-Identifier: Apache-2.0
"""GPUs as devices of ResourceSlices."""
