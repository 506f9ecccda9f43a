"""A kube-apiserver without nodes, and objects for it."""
