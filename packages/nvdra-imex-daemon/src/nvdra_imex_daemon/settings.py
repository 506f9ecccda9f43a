# SPDX-License-Identifier: Apache-2.0
"""All flags of the daemon.

`nvdra_runtime.settings.loader` fills the model once, from flags and environment variables. Names
and defaults are the reference driver's (docs/reference/imex.md, "Invocation"). The variables that
identify domain and clique are set by CDI, the others by the DaemonSet.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_runtime.settings import durations, fields
from nvdra_runtime.settings.loader import Flag
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

CONFIG = "imexd.cfg"
TEMPLATE = "imexd.cfg.tmpl"
NODES = "nodes.cfg"
INDEX = "place.json"

_UID = re.compile(r"[0-9a-zA-Z-]{1,63}")
_CLIQUE = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z.-]{0,62}")


def _duration(value: object) -> object:
    return durations.parse_seconds(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_duration)]
"""Seconds; written on the command line as Go writes durations."""


class Settings(BaseModel):
    """The daemon of a ComputeDomain on one node. Runs nvidia-imex and reports when it is READY.

    It runs in the pods that the ComputeDomain controller creates, one on each node of a domain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = fields.UNSUPPORTED_FLAGS

    cliqueid: Annotated[str, Flag(group="Domain", env=("CLIQUE_ID",))] = Field(
        default="",
        description="NVLink clique of this node, <cluster UUID>.<number>; empty on a node without "
        "fabric, where there is no IMEX to run.",
    )
    compute_domain_uuid: str = Field(default="", description="UID of the ComputeDomain.")
    compute_domain_name: str = Field(default="", description="Name of the ComputeDomain.")
    compute_domain_namespace: str = Field(
        default="default", description="Namespace of the ComputeDomain."
    )
    member_trace: bool = Field(
        default=False,
        description="Write spans into a trace of this node's own, which is linked with the "
        "domain's. The plugin sets it by CDI for domains of many nodes, whose trace would be too "
        "large.",
    )
    max_nodes_per_imex_domain: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="Maximum number of nodes in one clique; their indexes are less than this. With "
        "0 no node can join.",
    )

    clique_writer: Literal["daemons", "controller"] = Field(
        default="daemons",
        description="Who writes the clique. With controller, this daemon announces itself on its "
        "pod, and writes its entry only if the controller has not done it after 15 s. The "
        "controller that writes cliques sets it.",
    )
    peer_names: Literal["shared", "domain"] = Field(
        default="shared",
        description="DNS names of the domain's daemons. With domain they contain a hash of the "
        "domain's UID, so that nvidia-imex refuses a daemon of another domain; with shared they "
        "are those of every domain. All daemons of a domain must have the same: the controller "
        "sets it for domains that it makes.",
    )

    node_name: Annotated[str, Flag(group="Pod")] = Field(
        default="", description="Name of this node, which identifies its entry in the clique."
    )
    pod_ip: str = Field(
        default="", description="IP address of this pod, where its peers reach IMEX."
    )
    pod_uid: str = Field(default="", description="UID of this pod.")
    pod_name: str = Field(default="", description="Name of this pod.")
    pod_namespace: str = Field(default="", description="Namespace of this pod and of its clique.")

    imex_dir: Annotated[Path, Flag(group="Files")] = Field(
        default=Path("/imexd"),
        description="The domain's directory, mounted by CDI. It contains imexd.cfg.tmpl, which the "
        "plugin writes, and imexd.cfg, nodes.cfg, place.json and ready.lock, which the daemon "
        "writes.",
    )
    hosts_file: Path = Field(
        default=Path("/etc/hosts"), description="File to which the peers' DNS names are written."
    )

    imex_hang_timeout: Annotated[Duration, Flag(group="IMEX")] = Field(
        default=300.0,
        gt=0,
        description="How long nvidia-imex may run without any answer to nvidia-imex-ctl before it "
        "is ended and started again. One that answers and waits for other nodes is left alone.",
    )

    kubeconfig: fields.Kubeconfig = ""

    feature_gates: Annotated[FeatureGates, Flag(group="Behaviour")] = Field(
        default=FeatureGates(), description="Switches for features that are not stable yet."
    )

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status and /debug/flags/v. Keep it on the "
        "loopback interface. Empty disables it.",
    )
    v: fields.Verbosity = Field(
        default=0, description="Log verbosity: 0, 2 (each change), 4 (causes), 6."
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

    def missing_settings(self) -> Iterator[str]:
        """An error for each missing setting that `run` needs; `check` needs none of them."""
        if not self.compute_domain_uuid:
            yield (
                "--compute-domain-uuid (variable COMPUTE_DOMAIN_UUID) is required. It is set by "
                "the CDI devices of the pod's claim: check whether CDI is enabled in the container "
                "runtime, and whether the pod has a claim of class "
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
        """Clique of this node; empty without fabric."""
        return CliqueID(self.cliqueid)

    @property
    def node(self) -> NodeName:
        """Name of this node."""
        return NodeName(self.node_name)

    @property
    def pod(self) -> PodUID:
        """UID of this pod."""
        return PodUID(self.pod_uid)

    @property
    def uses_dns_names(self) -> bool:
        """Whether IMEX is configured with its peers' DNS names, rather than their addresses."""
        return self.feature_gates.is_enabled(Feature.IMEX_DNS_NAMES)

    @property
    def uses_cliques(self) -> bool:
        """Whether members are listed in a ComputeDomainClique, not in the domain's status."""
        return self.feature_gates.is_enabled(Feature.CLIQUES)

    @property
    def announces_itself(self) -> bool:
        """Whether the controller writes the clique, and this daemon announces itself to it."""
        return bool(self.cliqueid) and self.uses_cliques and self.clique_writer == "controller"

    @property
    def config_path(self) -> Path:
        """IMEX's configuration."""
        return self.imex_dir / CONFIG

    @property
    def template_path(self) -> Path:
        """Template of IMEX's configuration."""
        return self.imex_dir / TEMPLATE

    @property
    def nodes_path(self) -> Path:
        """IMEX's list of peers."""
        return self.imex_dir / NODES

    @property
    def index_path(self) -> Path:
        """File with our index for the next daemon on this node."""
        return self.imex_dir / INDEX
