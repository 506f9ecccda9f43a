# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions of ComputeDomains: ours, and what the cluster has."""
