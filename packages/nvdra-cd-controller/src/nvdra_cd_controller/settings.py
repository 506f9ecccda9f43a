# SPDX-License-Identifier: Apache-2.0
"""All flags of the controller.

`nvdra_runtime.settings.loader` fills the model once, from flags and environment variables. Names
and defaults are the reference driver's (docs/reference/compute-domain.md, "Flags of the
controller"), except the rate limits of the API client: with 5 requests per second, fifty new
domains would wait for a minute.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from nvdra_api import json_text
from nvdra_api.gates import FeatureGates
from nvdra_api.json_text import JsonTextError
from nvdra_api.quantity import Quantity
from nvdra_runtime.computedomain import imex_settings
from nvdra_runtime.settings import addresses, durations, fields
from nvdra_runtime.settings.loader import Flag
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nvdra_cd_controller.crds.keeper import Install
from nvdra_cd_controller.network_policies import NetworkRules


def _duration(value: object) -> object:
    return durations.parse_seconds(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_duration)]
"""Seconds; written on the command line as Go writes durations."""


def _resources(value: object) -> object:
    """Parse JSON. Quantities are normalized as the API server does, or they would always differ."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json_text.parse(value or "{}")
        normalized = {
            kind: {name: str(Quantity.parse(str(amount))) for name, amount in amounts.items()}
            for kind, amounts in parsed.items()
        }
    except (AttributeError, JsonTextError) as error:
        raise ValueError('must be JSON like {"limits": {"memory": "200Mi"}}') from error
    if unknown := normalized.keys() - {"requests", "limits"}:
        raise ValueError(f"may contain requests and limits, not {', '.join(sorted(unknown))}")
    return normalized


Resources = Annotated[Mapping[str, Mapping[str, str]], BeforeValidator(_resources)]
"""Requests and limits of a container; written on the command line as JSON."""


def _json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json_text.parse(value) if value else None
    except JsonTextError as error:
        raise ValueError('must be JSON like {"ingress": [], "egress": []}') from error


def _port_of_a_pod(address: str) -> str:
    """Port 0, any free port, is refused: the port is part of the pod's spec."""
    return addresses.validate(address, lowest_port=1) if address else ""


class Settings(BaseModel):
    """Controller of ComputeDomains. Gives each its IMEX daemons and its workload's claim template.

    It reports the status of each domain, and deletes what it created when the domain is deleted. In
    a cluster it runs as a Deployment (chart nvdra-cd-controller).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = {
        **fields.UNSUPPORTED_FLAGS,
        "--pprof-path": "there is no profiler; --debug-endpoint has traces and status, and SIGUSR2 "
        "logs what every thread is doing",
    }

    pod_name: Annotated[str, Flag(env=("POD_NAME",), group="Cluster")] = Field(
        min_length=1,
        description="Name of this pod, which with its UID identifies the holder of the lease.",
    )
    namespace: str = Field(
        default="default", min_length=1, description="Namespace of the driver and its daemons."
    )
    additional_namespaces: str = Field(
        default="",
        description="Namespaces, separated by commas, in which the driver was installed before. "
        "The controller manages their daemons too, but creates new ones in --namespace only.",
    )
    image_name: str = Field(min_length=1, description="Image of the daemons' pods.")
    cd_daemon_image_pull_secret_names: str = Field(
        default="",
        description="Image pull secrets in the daemons' namespaces, separated by commas or spaces.",
    )
    cd_daemon_image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = Field(
        default="", description="Image pull policy; empty leaves the default to Kubernetes."
    )
    cd_daemon_priority_class_name: str = Field(
        default="", description="Priority class of the daemons' pods; empty for none."
    )
    cd_daemon_resources: Resources = Field(
        default={}, description="Requests and limits of the daemons, as JSON; empty for none."
    )
    cd_daemon_http_endpoint: Annotated[str, AfterValidator(_port_of_a_pod)] = Field(
        default="",
        description="--http-endpoint of the daemons, for probes and metrics; empty for none.",
    )
    cd_daemon_network_policy: Annotated[NetworkRules | None, BeforeValidator(_json)] = Field(
        default=None,
        description="What a domain's daemons may do besides connecting to one another, as JSON: "
        "ingress and egress of a NetworkPolicy. Each domain gets one; empty for none.",
    )
    log_verbosity_cd_daemon: int = Field(ge=0, description="Log verbosity (-v) of the daemons.")
    max_nodes_per_imex_domain: int = Field(
        default=18,
        gt=0,
        le=10_000,
        description="Maximum number of a domain's nodes in one NVLink clique. Domains keep the "
        "number that they were made with.",
    )
    crds: Install = Field(
        default=Install.AUTO,
        description="Which CustomResourceDefinitions of ComputeDomains the controller writes: "
        "auto, those that are missing, and earlier versions of its own; always, also those that "
        "another project has installed; never, none.",
    )
    imex_mode: imex_settings.ImexMode = "driverManaged"
    imex_isolation: imex_settings.ImexIsolation = "domain"

    kubeconfig: fields.Kubeconfig = ""
    kube_api_qps: fields.KubeApiQps = 200.0
    kube_api_burst: fields.KubeApiBurst = 400

    leader_election_enabled: Annotated[bool, Flag(group="Leader election")] = Field(
        default=False, description="Work only while holding a lease. Required for several replicas."
    )
    leader_election_lease_lock_namespace: str = Field(
        default="default", description="Namespace of the lease."
    )
    leader_election_lease_lock_name: str = Field(
        default="nvidia-compute-domain-controller", description="Name of the lease."
    )
    leader_election_lease_duration: Duration = Field(
        default=15.0, gt=0, description="How long others wait for a holder that does not renew."
    )
    leader_election_renew_deadline: Duration = Field(
        default=10.0, gt=0, description="How long the holder tries to renew before it stops."
    )
    leader_election_retry_period: Duration = Field(
        default=2.0,
        gt=0,
        description="Interval between attempts to acquire or renew the lease; a second at most "
        "to acquire it while requests fail.",
    )

    feature_gates: Annotated[FeatureGates, Flag(group="Behaviour")] = Field(
        default=FeatureGates(),
        description="Switches for features that are not stable yet. Daemons get them; those of "
        "a domain keep the gates that it was made with.",
    )

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status and /debug/flags/v. Keep it on the "
        "loopback interface: it shows every tenant's domains. Empty disables it.",
    )
    v: fields.Verbosity = Field(
        default=0, description="Log verbosity: 0, 2 (each domain), 4 (causes), 6."
    )
    logging_format: fields.LoggingFormat = "text"
    pod_uid: fields.PodUid = ""
    node_name: Annotated[str, Flag(env=("NODE_NAME",))] = Field(
        default="", description="Name of this node, for Events and traces."
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        imex_settings.check_mode(self.imex_mode, self.feature_gates)
        duration, renew, retry = (
            self.leader_election_lease_duration,
            self.leader_election_renew_deadline,
            self.leader_election_retry_period,
        )
        if not duration > renew > 1.2 * retry:
            raise ValueError(
                "--leader-election-lease-duration must be longer than "
                "--leader-election-renew-deadline, and that longer than 1.2 times "
                f"--leader-election-retry-period: {duration:g} s, {renew:g} s, {retry:g} s"
            )
        return self

    @property
    def is_host_managed(self) -> bool:
        """Whether the hosts run IMEX, so that domains have no daemons."""
        return self.imex_mode == imex_settings.HOST_MANAGED

    @property
    def managed_namespaces(self) -> tuple[str, ...]:
        """Namespaces in which daemons may be: the driver's first, each once."""
        more = (name.strip() for name in self.additional_namespaces.split(","))
        return tuple(dict.fromkeys((self.namespace, *filter(None, more))))

    @property
    def pull_secrets(self) -> tuple[str, ...]:
        """Names of the image pull secrets of the daemons."""
        return tuple(self.cd_daemon_image_pull_secret_names.replace(",", " ").split())
