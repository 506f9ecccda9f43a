# SPDX-License-Identifier: Apache-2.0
"""The controller of ComputeDomains."""
