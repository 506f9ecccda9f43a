"""What touches the world: processes, the API server, the kubelet, the node.

One extra per subpackage.
"""
