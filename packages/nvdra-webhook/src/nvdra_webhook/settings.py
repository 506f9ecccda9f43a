# SPDX-License-Identifier: Apache-2.0
"""All flags of the webhook. `nvdra_runtime.settings.loader` fills the model once.

Names and defaults are the reference driver's (docs/reference/webhook.md, "Command line").
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from nvdra_api.gates import FeatureGates
from nvdra_runtime.settings import durations, fields
from nvdra_runtime.settings.loader import Flag
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _duration(value: object) -> object:
    return durations.parse_seconds(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_duration)]
"""Seconds; written on the command line as Go writes durations."""


class Settings(BaseModel):
    """Admission webhook of ResourceClaims and ResourceClaimTemplates.

    It refuses objects whose opaque configs for gpu.nvidia.com or compute-domain.nvidia.com the
    plugins would refuse at prepare, with each field and what would be right, and warns of settings
    that have no effect. In a cluster it runs as a Deployment (chart nvdra-webhook), and API servers
    connect to it by HTTPS. Its key pair comes from two files, or from a Secret that its replicas
    fill and renew themselves.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    left_out: ClassVar[Mapping[str, str]] = fields.UNSUPPORTED_FLAGS

    tls_cert_file: Annotated[str, Flag(group="Certificates")] = Field(
        default="",
        description="PEM file of the server's certificate, intermediates appended. It is read "
        "again when it changes.",
    )
    tls_private_key_file: str = Field(default="", description="PEM file of its private key.")
    tls_secret_name: str = Field(
        default="",
        description="Instead of files: a Secret, which exists, in --namespace. The webhook makes a "
        "CA and certificates in it, renews them, and writes the CA into the webhook configuration.",
    )
    namespace: str = Field(
        default="default", min_length=1, description="Namespace of the Secret and of the Service."
    )
    service_name: str = Field(
        default="", description="Service that API servers connect to, for certificates."
    )
    tls_dns_names: str = Field(
        default="", description="More names for certificates, separated by commas."
    )
    webhook_configuration_name: str = Field(
        default="", description="ValidatingWebhookConfiguration that gets the CA."
    )
    tls_min_version: Literal["VersionTLS12", "VersionTLS13"] = Field(
        default="VersionTLS12", description="Oldest version of TLS that clients may use."
    )

    bind_address: Annotated[str, Flag(group="Serving")] = Field(
        default="", description="Address of the HTTPS port; empty for all."
    )
    port: int = Field(
        default=443,
        ge=0,
        le=65535,
        description="HTTPS port for /validate-resource-claim-parameters and /readyz.",
    )
    max_request_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=64 * 1024,
        description="Maximum size of a request: an object before and after its change, of up to "
        "3 MiB each.",
    )
    request_timeout: Duration = Field(
        default=10.0, gt=0, description="How long a request may take to arrive."
    )
    shutdown_grace_period: Duration = Field(
        default=5.0,
        ge=0,
        description="How long the webhook still serves after SIGTERM, while /readyz says no, until "
        "nobody is sent to it any more.",
    )

    cluster_lookup_interval: Annotated[Duration, Flag(group="Behaviour")] = Field(
        default=120.0,
        ge=0,
        description="Interval at which DeviceClasses and ResourceSlices are listed, for warnings "
        "about classes and MIG profiles that do not exist; 0 for no such warnings.",
    )
    feature_gates: FeatureGates = Field(
        default=FeatureGates(),
        description="Switches for features that are not stable yet; the same as the plugins'.",
    )

    kubeconfig: fields.Kubeconfig = ""
    kube_api_qps: fields.KubeApiQps = 5.0
    kube_api_burst: fields.KubeApiBurst = 10

    http_endpoint: fields.HttpEndpoint = ""
    metrics_path: fields.MetricsPath = "/metrics"
    debug_endpoint: fields.Address = Field(
        default="127.0.0.1:6060",
        description="host:port of /debug/traces, /debug/status and /debug/flags/v. Keep it on the "
        "loopback interface. Empty disables it.",
    )
    v: fields.Verbosity = Field(
        default=0, description="Log verbosity: 0, 2 (each request), 6 (for developers)."
    )
    logging_format: fields.LoggingFormat = "text"
    pod_uid: fields.PodUid = ""
    node_name: Annotated[str, Flag(env=("NODE_NAME",))] = Field(
        default="", description="Name of this node, for traces."
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        files = {
            "tls-cert-file": self.tls_cert_file,
            "tls-private-key-file": self.tls_private_key_file,
        }
        if self.tls_secret_name:
            if given := [f"--{name}" for name, file in files.items() if file]:
                raise ValueError(
                    f"--tls-secret-name cannot be used with {' and '.join(given)}: the key pair "
                    "comes from one place"
                )
            needed = {
                "service-name": self.service_name,
                "webhook-configuration-name": self.webhook_configuration_name,
            }
            self._require(needed, "")
        else:
            self._require(files, "; or give --tls-secret-name")
        return self

    @staticmethod
    def _require(values: Mapping[str, str], otherwise: str) -> None:
        missing = [name for name, value in values.items() if not value]
        if missing:
            flags = "flag" if len(missing) == 1 else "flags"
            raise ValueError(f'Required {flags} "{", ".join(missing)}" not set{otherwise}')

    @property
    def dns_names(self) -> frozenset[str]:
        """The names that certificates are for."""
        service = f"{self.service_name}.{self.namespace}.svc"
        more = (name.strip() for name in self.tls_dns_names.split(","))
        return frozenset((service, f"{service}.cluster.local", *filter(None, more)))

    @property
    def needs_api_server(self) -> bool:
        """Whether anything is asked of the API server."""
        return bool(self.tls_secret_name) or self.cluster_lookup_interval > 0
