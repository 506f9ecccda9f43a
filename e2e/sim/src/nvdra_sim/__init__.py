"""A simulated NVIDIA driver installation, below an unmodified pynvml."""
