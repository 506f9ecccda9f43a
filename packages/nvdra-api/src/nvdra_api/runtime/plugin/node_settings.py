"""Settings that every plugin of a node has, beside those of its own.

Names and defaults are the reference's (spec/gpu-prepare.md §3, spec/compute-domain.md §7.1), except
the request limits: 5 requests a second would cap a node at five prepares a second.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nvdra_api.protocol import registration
from nvdra_api.runtime.process import fields
from nvdra_api.runtime.process.flags import Flag
from nvdra_api.types import names
from nvdra_api.types.gates import Gates

_DEV = Path("/dev")


def _absolute(path: Path) -> Path:
    # The kubelet and the container runtime work in other directories than we do.
    if not path.is_absolute():
        raise ValueError("must be absolute")
    return path


def _named_dev(path: Path) -> Path:
    # A device's path in the container is its path below the parent of this directory.
    if path.name != _DEV.name:
        raise ValueError("must be a directory named dev, such as /host/dev")
    return path


HostPath = Annotated[Path, AfterValidator(_absolute)]
"""A path that others use as well: the same in here as on the host."""

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


class NodeSettings(BaseModel):
    """The flags of any plugin, in this order; a driver's own come after them.

    Attributes:
        driver: Whose plugin it is; each model says it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    driver: ClassVar[str]
    left_out: ClassVar[Mapping[str, str]] = LEFT_OUT

    node_name: Annotated[str, Flag(group="Node")] = Field(
        min_length=1, description="Node that is served; also the name of its pool."
    )
    nvidia_driver_root: Annotated[
        HostPath,
        Flag(
            env=("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"),
            aliases=("host_driver-root", "host-driver-root"),
        ),
    ] = Field(default=Path("/"), description="Root of the driver installation, as on the host.")
    container_driver_root: Annotated[Path, Flag(env=("DRIVER_ROOT_CTR_PATH",))] = Field(
        default=Path("/driver-root"),
        description="Where this process sees that root; libraries are looked up below it.",
    )
    proc_root: Path = Field(default=Path("/proc"), description="What the host has at /proc.")
    sys_root: Path = Field(default=Path("/sys"), description="What the host has at /sys.")
    dev_root: Annotated[Path, AfterValidator(_named_dev)] = Field(
        default=_DEV,
        description="What the host has at /dev, a directory named dev: where the driver's device "
        "nodes are looked up.",
    )
    nvidia_cdi_hook_path: str = Field(
        default="",
        description="nvidia-cdi-hook on the host; empty installs the bundled "
        "/usr/bin/nvidia-cdi-hook into the plugin's directory.",
    )
    cdi_root: HostPath = Field(
        default=Path(names.DEFAULT_CDI_ROOT),
        description="Where CDI specs are written for the container runtime.",
    )

    kubelet_registrar_directory_path: Annotated[HostPath, Flag(group="Kubelet")] = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins_registry"),
        description="Where the kubelet looks for plugins; the same path in here as on the host.",
    )
    kubelet_plugins_directory_path: HostPath = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins"),
        description="Parent of our own directory, which is named after the driver: socket, state, "
        "and what pods of ours share with us.",
    )

    kubeconfig: fields.Kubeconfig = ""
    kube_api_qps: fields.KubeApiQps = 200.0
    kube_api_burst: fields.KubeApiBurst = 400

    feature_gates: Annotated[Gates, Flag(group="Behaviour")] = Field(
        default=Gates(), description="Switches for features that are not settled yet."
    )

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status (which the command status asks) and "
        "/debug/flags/v; keep it on the loopback, they name every tenant's claims. Empty serves "
        "none.",
    )
    v: fields.Verbosity = Field(
        default=0,
        description="Log verbosity: 0, 2 (each claim), 4 (why), 5 (an Event of each success), 6.",
    )
    logging_format: fields.LoggingFormat = "text"
    pod_name: Annotated[str, Flag(env=("POD_NAME",))] = Field(
        default="", description="Pod we run in, for whoever asks who holds the node."
    )
    pod_uid: fields.PodUid = ""

    @model_validator(mode="after")
    def _has_room_for_sockets(self) -> Self:
        registration.sockets(
            self.driver, str(self.plugin_dir), str(self.kubelet_registrar_directory_path)
        )
        return self

    @property
    def plugin_dir(self) -> Path:
        """Our own directory on the node: socket, state, hook."""
        return self.kubelet_plugins_directory_path / self.driver
