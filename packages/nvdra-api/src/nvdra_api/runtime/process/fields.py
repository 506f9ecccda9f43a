"""Settings that several components have: flag, check and help, each written once.

A component's model lists them in its own order, gives each its default, and may describe it in its
own words: `kubeconfig: fields.Kubeconfig = ""`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from nvdra_api.runtime.process import addresses
from nvdra_api.runtime.process.flags import Flag


def _address(address: str) -> str:
    return addresses.checked(address) if address else ""


def _url_path(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError("must start with /")
    return path


Address = Annotated[str, AfterValidator(_address)]
"""`host:port` that is served; empty serves nothing."""

Kubeconfig = Annotated[
    str,
    Flag(group="API server"),
    Field(description="Credentials file; empty means those of the pod."),
]

KubeApiQps = Annotated[
    float, Field(gt=0, description="Requests a second to the API server, on average.")
]

KubeApiBurst = Annotated[
    int, Field(gt=0, description="Requests that may be sent at once before that counts.")
]

HttpEndpoint = Annotated[
    Address,
    Flag(group="Observation"),
    Field(description="host:port of /healthz, /readyz and /metrics; empty serves none."),
]

MetricsPath = Annotated[
    str,
    AfterValidator(_url_path),
    Field(description="Path of the metrics there; empty serves none."),
]

Verbosity = Annotated[int, Field(ge=0)]
"""Of the log; each component says what it tells from where on."""

LoggingFormat = Annotated[
    Literal["text", "json"],
    Field(description="Log lines for people (text) or for machines (json)."),
]

PodUid = Annotated[
    str,
    Flag(env=("POD_UID",)),
    Field(description="UID of that pod, for the resource of our traces."),
]
"""Stands behind the name of the pod."""

LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--vmodule": "-v is for all modules; a PUT to /debug/flags/v of --debug-endpoint changes "
        "it while the process runs",
        "--log-flush-frequency": "every line is written at once",
    }
)
"""Flags of the reference driver's programs, and what to use instead (`flags.left_out`)."""
