"""Settings that every plugin of a node has, beside those of any component (`process.fields`).

Paths below the driver, the host and the kubelet: names and defaults are the reference's
(spec/gpu-prepare.md §3, spec/compute-domain.md §7.1).
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from nvdra_api.runtime.process import fields
from nvdra_api.runtime.process.flags import Flag

DEV = Path("/dev")


def _absolute(path: Path) -> Path:
    # The kubelet and the container runtime work in other directories than we do.
    if not path.is_absolute():
        raise ValueError("must be absolute")
    return path


def _named_dev(path: Path) -> Path:
    # A device's path in the container is its path below the parent of this directory.
    if path.name != DEV.name:
        raise ValueError("must be a directory named dev, such as /host/dev")
    return path


HostPath = Annotated[Path, AfterValidator(_absolute)]
"""A path that others use as well: the same in here as on the host."""

NodeName = Annotated[
    str,
    Flag(group="Node"),
    Field(min_length=1, description="Node that is served; also the name of its pool."),
]

NvidiaDriverRoot = Annotated[
    HostPath,
    Flag(
        env=("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"),
        aliases=("host_driver-root", "host-driver-root"),
    ),
    Field(description="Root of the driver installation, as on the host."),
]

ContainerDriverRoot = Annotated[
    Path,
    Flag(env=("DRIVER_ROOT_CTR_PATH",)),
    Field(description="Where this process sees that root; libraries are looked up below it."),
]

ProcRoot = Annotated[Path, Field(description="What the host has at /proc.")]
SysRoot = Annotated[Path, Field(description="What the host has at /sys.")]
DevRoot = Annotated[Path, AfterValidator(_named_dev)]

NvidiaCdiHookPath = Annotated[
    str,
    Field(
        description="nvidia-cdi-hook on the host; empty installs the bundled "
        "/usr/bin/nvidia-cdi-hook into the plugin's directory."
    ),
]

CdiRoot = Annotated[
    HostPath, Field(description="Where CDI specs are written for the container runtime.")
]

KubeletRegistrarDirectory = Annotated[
    HostPath,
    Flag(group="Kubelet"),
    Field(description="Where the kubelet looks for plugins; the same path in here as on the host."),
]

PodName = Annotated[
    str,
    Flag(env=("POD_NAME",)),
    Field(description="Pod we run in, for whoever asks who holds the node."),
]

LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        **fields.LEFT_OUT,
        "--healthcheck-port": "there is no gRPC health service; /healthz and /readyz of "
        "--http-endpoint say it",
        "ALT_PROC_DEVICES_PATH": "--proc-root (variable PROC_ROOT) names a directory to be read in "
        "place of /proc, with its file devices",
    }
)
"""As `fields.LEFT_OUT`, of the reference driver's plugins."""
