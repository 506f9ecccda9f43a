# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains as the plugin reads them."""
