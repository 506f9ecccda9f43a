# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes components that run on the machines."""
