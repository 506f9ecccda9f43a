# SPDX-License-Identifier: Apache-2.0
"""Settings that several components share, with their flags, validation and help.

A component's model declares them in its own order with its own defaults, and may override the
description: `kubeconfig: fields.Kubeconfig = ""`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from nvdra_runtime.settings import addresses
from nvdra_runtime.settings.flags import Flag


def _address(address: str) -> str:
    return addresses.validate(address) if address else ""


def _url_path(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError("must start with /")
    return path


Address = Annotated[str, AfterValidator(_address)]
"""`host:port` of an endpoint; empty disables it."""

Kubeconfig = Annotated[
    str,
    Flag(group="API server"),
    Field(description="Path of a kubeconfig; empty uses the pod's service account."),
]

KubeApiQps = Annotated[
    float, Field(gt=0, description="Requests per second to the API server, on average.")
]

KubeApiBurst = Annotated[
    int, Field(gt=0, description="Requests that may be sent at once before that limit applies.")
]

HttpEndpoint = Annotated[
    Address,
    Flag(group="Observation"),
    Field(description="host:port of /healthz, /readyz and /metrics; empty disables them."),
]

MetricsPath = Annotated[
    str,
    AfterValidator(_url_path),
    Field(description="Path of the metrics on that endpoint; empty disables them."),
]

Verbosity = Annotated[int, Field(ge=0)]
"""Verbosity of the log. Each component describes its levels."""

LoggingFormat = Annotated[
    Literal["text", "json"],
    Field(description="Format of the log: text (as of klog), or json (one object per line)."),
]

PodUid = Annotated[
    str,
    Flag(env=("POD_UID",)),
    Field(description="UID of this pod, for the resource attributes of traces."),
]
"""Declared after the name of the pod."""

UNSUPPORTED_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--vmodule": "-v applies to all modules; a PUT to /debug/flags/v of --debug-endpoint "
        "changes it while the process runs",
        "--log-flush-frequency": "every line is written at once",
    }
)
"""Flags of the reference driver that are not supported, and what to use instead."""
