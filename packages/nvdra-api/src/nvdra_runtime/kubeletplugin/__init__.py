# SPDX-License-Identifier: Apache-2.0
"""A DRA driver's kubelet plugin: sockets, registration, gRPC and status. Needs the extra `plugin`.

This is the only package that imports grpc and the generated messages.
"""

from nvdra_runtime.extras import require

require(
    __name__,
    "plugin",
    "aiohttp",
    "grpc",
    "kubernetes",
    "opentelemetry",
    "prometheus_client",
    "pynvml",
    "yaml",
)
