# SPDX-License-Identifier: Apache-2.0
"""Checks an installation in a cluster as an administrator would. Needs the extra `kube`.

The charts' `helm test` runs it in a pod.
"""
