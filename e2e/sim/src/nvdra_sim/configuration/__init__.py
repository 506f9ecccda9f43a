"""Configuration files of a simulated node."""
