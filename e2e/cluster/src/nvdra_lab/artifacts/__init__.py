"""Binaries and images that a lab runs, built once."""
