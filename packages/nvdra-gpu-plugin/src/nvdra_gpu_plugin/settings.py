"""Every flag of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are the reference's (spec/gpu-prepare.md §3), except the request limits: 5
requests a second would cap a node at five prepares a second.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from nvdra_api.protocol import registration
from nvdra_api.runtime.process import addresses
from nvdra_api.runtime.process.settings import Flag
from nvdra_api.types import names
from nvdra_api.types.gates import Gates
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

DEV = Path("/dev")


class Settings(BaseModel):
    """DRA driver gpu.nvidia.com: hands the node's NVIDIA GPUs to pods that claim them.

    It publishes the GPUs as ResourceSlices, prepares claims for the kubelet and describes devices
    to the container runtime by CDI. In a cluster it runs as a DaemonSet (chart nvdra-gpu-plugin).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_name: Annotated[str, Flag(group="Node")] = Field(
        min_length=1, description="Node that is served; also the name of its pool."
    )
    nvidia_driver_root: Annotated[
        Path,
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
    dev_root: Path = Field(
        default=DEV,
        description="What the host has at /dev, a directory named dev: where the GPUs' device "
        "nodes are looked up.",
    )
    nvidia_cdi_hook_path: str = Field(
        default="",
        description="nvidia-cdi-hook on the host; empty installs the bundled "
        "/usr/bin/nvidia-cdi-hook into the plugin's directory.",
    )
    cdi_root: Path = Field(
        default=Path(names.DEFAULT_CDI_ROOT),
        description="Where CDI specs are written for the container runtime.",
    )

    kubelet_registrar_directory_path: Annotated[Path, Flag(group="Kubelet")] = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins_registry"),
        description="Where the kubelet looks for plugins; the same path in here as on the host.",
    )
    kubelet_plugins_directory_path: Path = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins"),
        description="Parent of our own directory, gpu.nvidia.com: socket and state.",
    )

    kubeconfig: Annotated[str, Flag(group="API server")] = Field(
        default="", description="Credentials file; empty means those of the pod."
    )
    kube_api_qps: float = Field(
        default=200.0, gt=0, description="Requests a second to the API server, on average."
    )
    kube_api_burst: int = Field(
        default=400, gt=0, description="Requests that may be sent at once before that counts."
    )

    feature_gates: Annotated[Gates, Flag(group="Behaviour")] = Field(
        default=Gates(), description="Switches for features that are not settled yet."
    )

    http_endpoint: Annotated[str, Flag(group="Observation")] = Field(
        default="",
        description="host:port of /healthz, /readyz and /metrics; empty serves none.",
    )
    metrics_path: str = Field(
        default="/metrics", description="Path of the metrics there; empty serves none."
    )
    debug_endpoint: str = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status (which the command status asks) and "
        "/debug/flags/v; keep it on the loopback, they name every tenant's claims. Empty serves "
        "none.",
    )
    v: int = Field(
        default=0,
        ge=0,
        description="Log verbosity: 0, 2 (each claim), 4 (why), 5 (an Event of each success), 6.",
    )
    logging_format: Literal["text", "json"] = Field(
        default="text", description="Log lines for people (text) or for machines (json)."
    )
    pod_name: Annotated[str, Flag(env=("POD_NAME",))] = Field(
        default="", description="Pod we run in, for whoever asks who holds the node."
    )
    pod_uid: Annotated[str, Flag(env=("POD_UID",))] = Field(
        default="", description="UID of that pod, for the resource of our traces."
    )

    @field_validator("dev_root")
    @classmethod
    def _is_named_dev(cls, path: Path) -> Path:
        # A device's path in the container is its path below the parent of this directory.
        if path.name != DEV.name:
            raise ValueError("must be a directory named dev, such as /host/dev")
        return path

    @field_validator(
        "nvidia_driver_root", "cdi_root", "kubelet_registrar_directory_path",
        "kubelet_plugins_directory_path",
    )  # fmt: skip
    @classmethod
    def _is_absolute(cls, path: Path) -> Path:
        # The kubelet and the container runtime work in other directories than we do.
        if not path.is_absolute():
            raise ValueError("must be absolute")
        return path

    @field_validator("http_endpoint", "debug_endpoint")
    @classmethod
    def _is_address(cls, address: str) -> str:
        return addresses.checked(address) if address else ""

    @field_validator("metrics_path")
    @classmethod
    def _is_path(cls, path: str) -> str:
        if path and not path.startswith("/"):
            raise ValueError("must start with /")
        return path

    @model_validator(mode="after")
    def _has_room_for_sockets(self) -> Self:
        registration.sockets(
            names.GPU_DRIVER, str(self.plugin_dir), str(self.kubelet_registrar_directory_path)
        )
        return self

    @property
    def plugin_dir(self) -> Path:
        """Our own directory on the node: socket, state, hook."""
        return self.kubelet_plugins_directory_path / names.GPU_DRIVER
