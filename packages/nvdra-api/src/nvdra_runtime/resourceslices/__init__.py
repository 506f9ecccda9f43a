# SPDX-License-Identifier: Apache-2.0
"""The node's pool of ResourceSlices and its publication. The publisher needs the extra `kube`."""
