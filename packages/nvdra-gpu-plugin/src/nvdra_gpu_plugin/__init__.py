# SPDX-License-Identifier: Apache-2.0
"""The DRA driver gpu.nvidia.com."""
