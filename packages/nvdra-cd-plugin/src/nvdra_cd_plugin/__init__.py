"""The DRA driver compute-domain.nvidia.com."""
