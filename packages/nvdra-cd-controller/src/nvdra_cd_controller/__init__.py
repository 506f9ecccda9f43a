"""The controller of ComputeDomains."""
