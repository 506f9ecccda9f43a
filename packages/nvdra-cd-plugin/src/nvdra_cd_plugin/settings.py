"""Every flag of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are the reference's (spec/compute-domain.md §7.1), except the request limits, as
for the GPU plugin.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from nvdra_api.protocol import registration
from nvdra_api.runtime.plugin import node_fields
from nvdra_api.runtime.process import fields, imex_fields
from nvdra_api.runtime.process.settings import Flag
from nvdra_api.types import names
from nvdra_api.types.gates import Gates
from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """DRA driver compute-domain.nvidia.com: makes a node a member of ComputeDomains.

    It publishes the node's IMEX channel, labels the node for the domain whose workload comes, gives
    the domain's daemon what it needs, and gives the workload its channels once that daemon is
    ready. In a cluster it runs as a DaemonSet (chart nvdra-cd-plugin).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = node_fields.LEFT_OUT

    node_name: node_fields.NodeName
    nvidia_driver_root: node_fields.NvidiaDriverRoot = Path("/")
    container_driver_root: node_fields.ContainerDriverRoot = Path("/driver-root")
    proc_root: node_fields.ProcRoot = Path("/proc")
    sys_root: node_fields.SysRoot = Path("/sys")
    dev_root: node_fields.DevRoot = Field(
        default=node_fields.DEV,
        description="What the host has at /dev, a directory named dev: where the driver's device "
        "nodes are looked up.",
    )
    nvidia_cdi_hook_path: node_fields.NvidiaCdiHookPath = ""
    cdi_root: node_fields.CdiRoot = Path(names.DEFAULT_CDI_ROOT)

    namespace: Annotated[str, Flag(group="Domains")] = Field(
        default="default",
        min_length=1,
        description="Namespace of the driver: daemons of domains are there, and their cliques.",
    )
    additional_namespaces: str = Field(
        default="",
        description="Namespaces, comma separated, where the driver was before and daemons may "
        "still be; as of the controller.",
    )
    imex_mode: imex_fields.ImexMode = "driverManaged"
    imex_isolation: imex_fields.ImexIsolation = "domain"
    imex_host_socket_path: Path = Field(
        default=Path("/etc/nvidia-imex/imex_ctrl.sock"),
        description="Where the host's own nvidia-imex is asked for its state, as on the host; for "
        "--imex-mode=hostManaged.",
    )
    gpu_clique_label_enabled: bool = Field(
        default=False,
        description=f"Tell the node's NVLink clique in its label {names.GPU_CLIQUE_LABEL}.",
    )

    kubelet_registrar_directory_path: node_fields.KubeletRegistrarDirectory = Path(
        names.DEFAULT_KUBELET_ROOT, "plugins_registry"
    )
    kubelet_plugins_directory_path: node_fields.HostPath = Field(
        default=Path(names.DEFAULT_KUBELET_ROOT, "plugins"),
        description="Parent of our own directory, compute-domain.nvidia.com: socket, state, and "
        "what daemons share with us.",
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
    def _is_consistent(self) -> Self:
        imex_fields.check(self.imex_mode, self.feature_gates)
        registration.sockets(
            names.COMPUTE_DOMAIN_DRIVER,
            str(self.plugin_dir),
            str(self.kubelet_registrar_directory_path),
        )
        return self

    @property
    def plugin_dir(self) -> Path:
        """Our own directory on the node: socket, state, hook, domains."""
        return self.kubelet_plugins_directory_path / names.COMPUTE_DOMAIN_DRIVER

    @property
    def is_host_managed(self) -> bool:
        """Does the host run IMEX? Then a domain has no daemons of ours."""
        return self.imex_mode == imex_fields.HOST_MANAGED

    @property
    def managed_namespaces(self) -> tuple[str, ...]:
        """Where daemons may be: the driver's namespace first, each once."""
        more = (name.strip() for name in self.additional_namespaces.split(","))
        return tuple(dict.fromkeys((self.namespace, *filter(None, more))))
