# SPDX-License-Identifier: Apache-2.0
"""The HTTPS server, which does not know what is asked of it."""
