"""The Kubernetes components that run on the machines."""
