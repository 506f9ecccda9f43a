# SPDX-License-Identifier: Apache-2.0
"""A kube-apiserver without nodes, and objects for it."""
