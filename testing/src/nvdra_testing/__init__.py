"""Shared test code: clusters, nodes, kubelets, hardware, faults and crash campaigns."""
