# SPDX-License-Identifier: Apache-2.0
"""Requests to the admission webhook: configs that are right or wrong, and what carries them."""
