"""pytest fixtures of the simulator."""
