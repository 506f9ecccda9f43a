"""The NVLink fabric of this node."""
