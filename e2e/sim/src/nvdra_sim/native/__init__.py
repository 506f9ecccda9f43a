"""The C parts of the simulator, compiled on first use."""
