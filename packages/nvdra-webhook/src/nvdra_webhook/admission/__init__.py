# SPDX-License-Identifier: Apache-2.0
"""What is said about an object: its verdict, and how the API server asks for it.

Nothing here opens files or connections or knows the time.
"""
