"""The node's membership in a ComputeDomain."""
