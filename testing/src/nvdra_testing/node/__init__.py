# SPDX-License-Identifier: Apache-2.0
"""One node with the driver's programs on it, as processes."""
