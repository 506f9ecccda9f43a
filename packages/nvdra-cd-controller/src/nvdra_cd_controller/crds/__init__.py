"""The CustomResourceDefinitions of ComputeDomains: ours, and what the cluster has."""
