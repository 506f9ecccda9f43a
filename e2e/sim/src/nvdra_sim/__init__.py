"""A simulated NVIDIA driver installation that works with an unmodified pynvml."""
