# SPDX-License-Identifier: Apache-2.0
"""Device nodes and files of this node."""
