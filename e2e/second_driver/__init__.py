"""A second, small DRA driver over nvdra-api alone, for tests of the kubelet's part.

`driver` is the program that runs on a node, `orders` what tests tell it. It imports nothing of the
GPU plugin: what it needs to be a driver is what nvdra-api offers to any.
"""
