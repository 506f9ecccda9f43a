"""Flags and environment variables of a component, read into one model."""
