# SPDX-License-Identifier: Apache-2.0
"""The test in the place of the kubelet, and simulated drivers for a real kubelet."""
