"""The node itself: files and roots, the state store, NVML."""
