"""The kubelet's gRPC services; the only door to grpc and to the generated messages.

Extra "kubelet".
"""
