# SPDX-License-Identifier: Apache-2.0
"""Settings of any kubelet plugin; each plugin adds its own.

Names and defaults are those of the reference driver (docs/reference/gpu-prepare.md, "Flags and
environment", docs/reference/compute-domain.md, "Flags of the plugin"), except the request limits:
its 5 requests per second would limit a node to five prepares per second.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Self

from nvdra_api import names
from nvdra_api.gates import FeatureGates
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nvdra_runtime.kubeletplugin import registration
from nvdra_runtime.settings import fields
from nvdra_runtime.settings.flags import Flag

_DEV = Path("/dev")


def _check_absolute(path: Path) -> Path:
    # The kubelet and the container runtime have other working directories.
    if not path.is_absolute():
        raise ValueError("must be absolute")
    return path


def _check_named_dev(path: Path) -> Path:
    # A device's path in the container is its path below the parent of this directory.
    if path.name != _DEV.name:
        raise ValueError("must be a directory named dev, such as /host/dev")
    return path


HostPath = Annotated[Path, AfterValidator(_check_absolute)]
"""A path that other programs use, too: the same in the container as on the host."""

LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        **fields.UNSUPPORTED_FLAGS,
        "--healthcheck-port": "there is no gRPC health service; use /healthz and /readyz of "
        "--http-endpoint",
        "ALT_PROC_DEVICES_PATH": "--proc-root (variable PROC_ROOT) names a directory to be read in "
        "place of /proc, with its file devices",
    }
)
"""Like `fields.UNSUPPORTED_FLAGS`, for the reference driver's plugins."""


class PluginSettings(BaseModel):
    """The flags of any plugin, in the order of the help. A driver's own flags come after them.

    Attributes:
        driver: The driver's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    driver: ClassVar[str]
    left_out: ClassVar[Mapping[str, str]] = LEFT_OUT

    node_name: Annotated[str, Flag(group="Node")] = Field(
        min_length=1, description="Name of this node. Its pool has the same name."
    )
    nvidia_driver_root: Annotated[
        HostPath,
        Flag(
            env=("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"),
            aliases=("host_driver-root", "host-driver-root"),
        ),
    ] = Field(
        default=Path("/"), description="Root of the NVIDIA driver's files: the path on the host."
    )
    container_driver_root: Annotated[Path, Flag(env=("DRIVER_ROOT_CTR_PATH",))] = Field(
        default=Path("/driver-root"),
        description="The path of the same root in this container, where its files are read.",
    )
    proc_root: Path = Field(default=Path("/proc"), description="The host's /proc.")
    sys_root: Path = Field(default=Path("/sys"), description="The host's /sys.")
    dev_root: Annotated[Path, AfterValidator(_check_named_dev)] = Field(
        default=_DEV,
        description="The host's /dev, which has the driver's device nodes. The directory must be "
        "named dev.",
    )
    nvidia_cdi_hook_path: str = Field(
        default="",
        description="Path of nvidia-cdi-hook on the host. If it is empty, the bundled "
        "/usr/bin/nvidia-cdi-hook is copied into the plugin's directory.",
    )
    cdi_root: HostPath = Field(
        default=Path(names.DEFAULT_CDI_ROOT),
        description="Directory of the CDI specs for the container runtime.",
    )

    kubelet_registrar_directory_path: Annotated[HostPath, Flag(group="Kubelet")] = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins_registry"),
        description="Directory in which the kubelet looks for plugins. Its path must be the same "
        "here and on the host.",
    )
    kubelet_plugins_directory_path: HostPath = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins"),
        description="Parent of the plugin's directory. The plugin's directory has the name of the "
        "driver and contains the socket and the state file.",
    )

    kubeconfig: fields.Kubeconfig = ""
    kube_api_qps: fields.KubeApiQps = 200.0
    kube_api_burst: fields.KubeApiBurst = 400

    feature_gates: Annotated[FeatureGates, Flag(group="Behaviour")] = Field(
        default=FeatureGates(), description="Switches for features that are not stable yet."
    )

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status (which the command status reads) "
        "and /debug/flags/v. Keep it on the loopback interface, because it shows the claims of all "
        "tenants. Empty disables it.",
    )
    v: fields.Verbosity = Field(
        default=0,
        description="Log verbosity: 0, 2 (each claim), 4 (causes), 5 (also an Event for each "
        "success), 6.",
    )
    logging_format: fields.LoggingFormat = "text"
    pod_name: Annotated[str, Flag(env=("POD_NAME",))] = Field(
        default="",
        description="Name of this pod. A second instance on the node, which stands by, names it.",
    )
    pod_uid: fields.PodUid = ""

    @model_validator(mode="after")
    def _check_socket_paths(self) -> Self:
        registration.socket_paths(
            self.driver, str(self.plugin_dir), str(self.kubelet_registrar_directory_path)
        )
        return self

    @property
    def plugin_dir(self) -> Path:
        """The plugin's directory on the node: socket, state file, hook."""
        return self.kubelet_plugins_directory_path / self.driver
