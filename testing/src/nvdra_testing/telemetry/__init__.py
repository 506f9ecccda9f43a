# SPDX-License-Identifier: Apache-2.0
"""Spans that components export, received and checked."""
