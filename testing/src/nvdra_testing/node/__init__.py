"""One node with the driver's programs on it, as processes."""
