"""Disturbances of a component from outside."""
