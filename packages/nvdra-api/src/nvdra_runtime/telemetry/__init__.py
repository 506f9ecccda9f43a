# SPDX-License-Identifier: Apache-2.0
"""Traces, metrics and logs of a component. Needs the extra `telemetry`.

Source: docs/reference/tracing.md.
"""

from nvdra_runtime.extras import require

require(__name__, "telemetry", "opentelemetry", "prometheus_client")
