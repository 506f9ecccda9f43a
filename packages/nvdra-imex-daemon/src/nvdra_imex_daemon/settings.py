"""Every flag of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are the reference's (spec/compute-domain.md §8.1); what identifies domain and
clique comes into the environment by CDI, the rest by the DaemonSet.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from nvdra_api.runtime.process import fields
from nvdra_api.runtime.process.settings import Flag
from nvdra_api.types.gates import Feature, Gates
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID
from pydantic import BaseModel, ConfigDict, Field, field_validator

CONFIG = "imexd.cfg"
TEMPLATE = "imexd.cfg.tmpl"
NODES = "nodes.cfg"

_UID = re.compile(r"[0-9a-zA-Z-]{1,63}")
_CLIQUE = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z.-]{0,62}")


class Settings(BaseModel):
    """The daemon of a ComputeDomain on one node: runs nvidia-imex, tells its peers, says READY.

    It works in the pods that the ComputeDomain controller makes, one on each node of a domain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = fields.LEFT_OUT

    cliqueid: Annotated[str, Flag(group="Domain", env=("CLIQUE_ID",))] = Field(
        default="",
        description="NVLink clique of this node, <cluster UUID>.<number>; empty on a node without "
        "fabric, where there is no IMEX to run.",
    )
    compute_domain_uuid: str = Field(default="", description="UID of the ComputeDomain.")
    compute_domain_name: str = Field(default="", description="Its name.")
    compute_domain_namespace: str = Field(default="default", description="Its namespace.")
    max_nodes_per_imex_domain: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="How many nodes one clique may have: indexes are 0 to one less. 0 has room for "
        "nobody.",
    )

    node_name: Annotated[str, Flag(group="Pod")] = Field(
        default="", description="Node we run on; names our entry in the clique."
    )
    pod_ip: str = Field(default="", description="IP of our pod, where peers reach IMEX.")
    pod_uid: str = Field(default="", description="UID of our pod.")
    pod_name: str = Field(default="", description="Name of our pod.")
    pod_namespace: str = Field(
        default="", description="Namespace of our pod; the clique is kept there."
    )

    imex_dir: Annotated[Path, Flag(group="Files")] = Field(
        default=Path("/imexd"),
        description="The domain's directory, mounted by CDI: the plugin's imexd.cfg.tmpl, and "
        "imexd.cfg and nodes.cfg, which we make.",
    )
    hosts_file: Path = Field(
        default=Path("/etc/hosts"), description="Where the peers' DNS names are written."
    )

    kubeconfig: fields.Kubeconfig = ""

    feature_gates: Annotated[Gates, Flag(group="Behaviour")] = Field(
        default=Gates(), description="Switches for features that are not settled yet."
    )

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status and /debug/flags/v; keep it on the "
        "loopback. Empty serves none.",
    )
    v: fields.Verbosity = Field(
        default=0, description="Log verbosity: 0, 2 (each change), 4 (why), 6."
    )
    logging_format: fields.LoggingFormat = "text"

    @field_validator("cliqueid")
    @classmethod
    def _names_an_object(cls, clique: str) -> str:
        if clique and not _CLIQUE.fullmatch(clique):
            raise ValueError("must be <cluster UUID>.<number>")
        return clique

    @field_validator("compute_domain_uuid")
    @classmethod
    def _is_uid(cls, uid: str) -> str:
        if uid and not _UID.fullmatch(uid):
            raise ValueError("must be a UID")
        return uid

    @field_validator("pod_ip")
    @classmethod
    def _is_ip(cls, text: str) -> str:
        return str(ipaddress.ip_address(text)) if text else text

    def missing(self) -> Iterator[str]:
        """What `run` cannot do without, a sentence each; `check` needs none of it."""
        if not self.compute_domain_uuid:
            yield (
                "--compute-domain-uuid (variable COMPUTE_DOMAIN_UUID) is required. It is set by "
                "the CDI devices of the pod's claim: see whether the container runtime has CDI "
                "switched on, and whether the pod has a claim of class "
                "compute-domain-daemon.nvidia.com"
            )
        needed = ["pod_name", "pod_namespace", "node_name"]
        if self.cliqueid:
            needed += ["pod_ip", "pod_uid"]
        for field in needed:
            if not getattr(self, field):
                flag = field.replace("_", "-")
                yield f"--{flag} (variable {field.upper()}) is required; the DaemonSet sets it"

    @property
    def domain(self) -> DomainUID:
        """UID of the domain."""
        return DomainUID(self.compute_domain_uuid)

    @property
    def clique(self) -> CliqueID:
        """Our clique; empty without fabric."""
        return CliqueID(self.cliqueid)

    @property
    def node(self) -> NodeName:
        """Our node."""
        return NodeName(self.node_name)

    @property
    def pod(self) -> PodUID:
        """Our incarnation."""
        return PodUID(self.pod_uid)

    @property
    def has_names(self) -> bool:
        """Whether IMEX gets DNS names, which stay, rather than addresses, which change."""
        return self.feature_gates.is_on(Feature.IMEX_DNS_NAMES)

    @property
    def has_cliques(self) -> bool:
        """Whether members meet in a ComputeDomainClique rather than in the domain's status."""
        return self.feature_gates.is_on(Feature.CLIQUES)

    @property
    def config_path(self) -> Path:
        """IMEX's configuration."""
        return self.imex_dir / CONFIG

    @property
    def template_path(self) -> Path:
        """What it is made from."""
        return self.imex_dir / TEMPLATE

    @property
    def nodes_path(self) -> Path:
        """IMEX's list of peers."""
        return self.imex_dir / NODES
