# SPDX-License-Identifier: Apache-2.0
"""The NVLink fabric of this node."""
