# SPDX-License-Identifier: Apache-2.0
"""GPUs and driver installations for tests."""
