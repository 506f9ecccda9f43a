"""Machines: groups of processes with namespaces of their own."""
