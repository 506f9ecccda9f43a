"""Requests to the admission webhook: configs that are right or wrong, and what carries them."""
