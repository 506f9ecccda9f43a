"""The way to the API server; the only door to the kubernetes package.

JSON in and out, no models: what a newer server adds survives a read and a write. Extra "kube".
"""
