# SPDX-License-Identifier: Apache-2.0
"""What every driver does with a claim on its node. Needs the extra `plugin`.

The package reads claims, records prepared claims, recovers records, waits for devices in use,
removes stale claims and reports failures.
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
