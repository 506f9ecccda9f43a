# SPDX-License-Identifier: Apache-2.0
"""What every component's process needs: event loop, threads, locks, clock."""
