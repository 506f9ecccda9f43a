"""A real Kubernetes cluster on one machine, with simulated GPUs."""
