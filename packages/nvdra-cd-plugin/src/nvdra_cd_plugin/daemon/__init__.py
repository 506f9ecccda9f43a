"""The IMEX daemon of this node: its readiness, its pod, its files."""
