# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemons of claims whose devices are shared by MPS."""
