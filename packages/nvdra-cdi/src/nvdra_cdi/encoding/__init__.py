# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of CDI documents as YAML and JSON, below `codec`."""
