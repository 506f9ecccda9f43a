# SPDX-License-Identifier: Apache-2.0
"""Code shared by the controller, the plugin and the daemon of ComputeDomains."""
