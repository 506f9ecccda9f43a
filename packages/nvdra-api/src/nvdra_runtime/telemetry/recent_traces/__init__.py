# SPDX-License-Identifier: Apache-2.0
"""The most recent traces of this process, for its debug endpoint."""
