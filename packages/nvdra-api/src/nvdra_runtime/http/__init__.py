# SPDX-License-Identifier: Apache-2.0
"""HTTP endpoints of a component: probes, metrics and debug pages. Needs the extra `http`.

This is the only package that imports aiohttp.web.
"""

from nvdra_runtime.extras import require

require(__name__, "http", "aiohttp", "opentelemetry", "prometheus_client")
