"""The NVIDIA driver of the node: its files and its NVML sessions."""
