"""Every flag of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are the reference's (spec/compute-domain.md §6.1), except the request limits: 5
requests a second would make fifty domains wait for a minute.
"""

import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from nvdra_api.protocol import durations
from nvdra_api.runtime.process import addresses, fields, imex_fields
from nvdra_api.runtime.process.settings import Flag
from nvdra_api.types.gates import Gates
from nvdra_api.types.quantity import Quantity
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _duration(value: object) -> object:
    return durations.seconds(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_duration)]
"""Seconds; on the command line as Go writes durations."""


def _resources(value: object) -> object:
    """From JSON; each quantity as the API server writes it, or it would look changed for ever."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value or "{}")
        written = {
            kind: {name: str(Quantity.parse(str(amount))) for name, amount in amounts.items()}
            for kind, amounts in parsed.items()
        }
    except (AttributeError, json.JSONDecodeError) as error:
        raise ValueError('must be JSON like {"limits": {"memory": "200Mi"}}') from error
    if unknown := written.keys() - {"requests", "limits"}:
        raise ValueError(f"has requests and limits, not {', '.join(sorted(unknown))}")
    return written


Resources = Annotated[Mapping[str, Mapping[str, str]], BeforeValidator(_resources)]
"""Requests and limits, as of a container; on the command line as JSON."""


def _port_of_a_pod(address: str) -> str:
    """Port 0 would be another one each time, and a pod's ports are written down."""
    return addresses.checked(address, lowest_port=1) if address else ""


class Settings(BaseModel):
    """Controller of ComputeDomains: gives each its IMEX daemons and its workload's claim template.

    It tells each domain's status and takes away what it made when the domain is deleted. In a
    cluster it runs as a Deployment (chart nvdra-cd-controller).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = {
        **fields.LEFT_OUT,
        "--pprof-path": "there is no profiler; --debug-endpoint has traces and status, and SIGUSR2 "
        "has the process say where it is",
    }

    pod_name: Annotated[str, Flag(env=("POD_NAME",), group="Cluster")] = Field(
        min_length=1, description="Pod we run in: how the lease says who leads."
    )
    namespace: str = Field(
        default="default", min_length=1, description="Namespace of the driver and its daemons."
    )
    additional_namespaces: str = Field(
        default="",
        description="Namespaces, comma separated, where the driver was before: their daemons are "
        "looked after too, new ones are made in --namespace only.",
    )
    image_name: str = Field(min_length=1, description="Image of the daemons' pods.")
    cd_daemon_image_pull_secret_names: str = Field(
        default="",
        description="Secrets, comma or blank separated, to pull that image with; in the daemons' "
        "namespaces.",
    )
    cd_daemon_image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = Field(
        default="", description="When it is pulled; empty is Kubernetes' default."
    )
    cd_daemon_priority_class_name: str = Field(
        default="", description="Priority class of the daemons' pods; empty for none."
    )
    cd_daemon_resources: Resources = Field(
        default={}, description="Requests and limits of the daemons, as JSON; empty for none."
    )
    cd_daemon_http_endpoint: Annotated[str, AfterValidator(_port_of_a_pod)] = Field(
        default="",
        description="--http-endpoint of the daemons: probes and metrics; empty for none.",
    )
    log_verbosity_cd_daemon: int = Field(ge=0, description="-v of the daemons.")
    max_nodes_per_imex_domain: int = Field(
        default=18, gt=0, description="Most nodes of one domain in one NVLink clique."
    )
    imex_mode: imex_fields.ImexMode = "driverManaged"
    imex_isolation: imex_fields.ImexIsolation = "domain"

    kubeconfig: fields.Kubeconfig = ""
    kube_api_qps: fields.KubeApiQps = 200.0
    kube_api_burst: fields.KubeApiBurst = 400

    leader_election_enabled: Annotated[bool, Flag(group="Leader election")] = Field(
        default=False, description="Work only while holding a lease; for more than one replica."
    )
    leader_election_lease_lock_namespace: str = Field(
        default="default", description="Namespace of the lease."
    )
    leader_election_lease_lock_name: str = Field(
        default="nvidia-compute-domain-controller", description="Name of the lease."
    )
    leader_election_lease_duration: Duration = Field(
        default=15.0, gt=0, description="How long others wait for a holder that says nothing."
    )
    leader_election_renew_deadline: Duration = Field(
        default=10.0, gt=0, description="How long the holder tries to renew before it gives up."
    )
    leader_election_retry_period: Duration = Field(
        default=2.0, gt=0, description="Between two looks at the lease."
    )

    feature_gates: Annotated[Gates, Flag(group="Behaviour")] = Field(
        default=Gates(),
        description="Switches for features that are not settled yet; handed on to the daemons.",
    )

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status and /debug/flags/v; keep it on the "
        "loopback, they name every tenant's domains. Empty serves none.",
    )
    v: fields.Verbosity = Field(
        default=0, description="Log verbosity: 0, 2 (each domain), 4 (why), 6."
    )
    logging_format: fields.LoggingFormat = "text"
    pod_uid: fields.PodUid = ""
    node_name: Annotated[str, Flag(env=("NODE_NAME",))] = Field(
        default="", description="Node we run on, for our Events and traces."
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        imex_fields.check(self.imex_mode, self.feature_gates)
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
        """Does the host run IMEX? Then a domain has no daemons of ours."""
        return self.imex_mode == imex_fields.HOST_MANAGED

    @property
    def managed_namespaces(self) -> tuple[str, ...]:
        """Where daemons may be: the driver's namespace first, each once."""
        more = (name.strip() for name in self.additional_namespaces.split(","))
        return tuple(dict.fromkeys((self.namespace, *filter(None, more))))

    @property
    def pull_secrets(self) -> tuple[str, ...]:
        """Names of the secrets for the daemons' image."""
        return tuple(self.cd_daemon_image_pull_secret_names.replace(",", " ").split())
