"""Every flag of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are the reference's (spec/gpu-prepare.md §3), except the request limits: 5
requests a second would cap a node at five prepares a second.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from nvdra_api.protocol import registration
from nvdra_api.runtime.plugin import node_fields
from nvdra_api.runtime.process import fields
from nvdra_api.runtime.process.settings import Flag
from nvdra_api.types import names
from nvdra_api.types.gates import Gates
from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """DRA driver gpu.nvidia.com: hands the node's NVIDIA GPUs to pods that claim them.

    It publishes the GPUs as ResourceSlices, prepares claims for the kubelet and describes devices
    to the container runtime by CDI. In a cluster it runs as a DaemonSet (chart nvdra-gpu-plugin).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = {
        **node_fields.LEFT_OUT,
        **dict.fromkeys(
            (
                "--image-name",
                "--image-pull-secrets",
                "--image-pull-policy",
                "--service-account-name",
                "--namespace",
            ),
            "it is for MPS, which is not part of this release",
        ),
        "--consumable-shares": "sharing is not part of this release",
        "--host-root": "passthrough is not part of this release",
        "--additional-xids-to-ignore": "XIDs are not looked at in this release",
    }

    node_name: node_fields.NodeName
    nvidia_driver_root: node_fields.NvidiaDriverRoot = Path("/")
    container_driver_root: node_fields.ContainerDriverRoot = Path("/driver-root")
    proc_root: node_fields.ProcRoot = Path("/proc")
    sys_root: node_fields.SysRoot = Path("/sys")
    dev_root: node_fields.DevRoot = Field(
        default=node_fields.DEV,
        description="What the host has at /dev, a directory named dev: where the GPUs' device "
        "nodes are looked up.",
    )
    nvidia_cdi_hook_path: node_fields.NvidiaCdiHookPath = ""
    cdi_root: node_fields.CdiRoot = Path(names.DEFAULT_CDI_ROOT)

    kubelet_registrar_directory_path: node_fields.KubeletRegistrarDirectory = Path(
        names.DEFAULT_KUBELET_ROOT, "plugins_registry"
    )
    kubelet_plugins_directory_path: node_fields.HostPath = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins"),
        description="Parent of our own directory, gpu.nvidia.com: socket and state.",
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
    pod_name: node_fields.PodName = ""
    pod_uid: fields.PodUid = ""

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
