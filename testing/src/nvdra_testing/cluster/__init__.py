# SPDX-License-Identifier: Apache-2.0
"""A whole cluster with the driver in it, as administrators and users work with it."""
