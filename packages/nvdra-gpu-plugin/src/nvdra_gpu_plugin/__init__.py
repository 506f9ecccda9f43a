"""The DRA driver gpu.nvidia.com."""
