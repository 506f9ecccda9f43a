"""Device nodes and files of this node."""
