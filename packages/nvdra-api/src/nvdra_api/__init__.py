# SPDX-License-Identifier: Apache-2.0
"""The API types of nvdra, a Kubernetes DRA driver for NVIDIA GPUs.

`nvdra_api.v1beta1` has the kinds of `resource.nvidia.com/v1beta1`, `nvdra_api.resource` the objects
of `resource.k8s.io/v1` that a DRA driver reads and writes. This package imports the standard
library and pydantic. It does no I/O.
"""
