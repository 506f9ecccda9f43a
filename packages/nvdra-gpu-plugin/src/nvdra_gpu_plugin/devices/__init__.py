"""The GPUs of a node as values."""
