"""The flags of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are the reference's (spec/compute-domain.md §7.1).
"""

from pathlib import Path
from typing import Annotated, Self

from nvdra_api.runtime.plugin.node_settings import NodeSettings
from nvdra_api.runtime.process import imex_fields
from nvdra_api.runtime.process.settings import Flag
from nvdra_api.types import names
from pydantic import Field, model_validator


class Settings(NodeSettings):
    """DRA driver compute-domain.nvidia.com: makes a node a member of ComputeDomains.

    It publishes the node's IMEX channel, labels the node for the domain whose workload comes, gives
    the domain's daemon what it needs, and gives the workload its channels once that daemon is
    ready. In a cluster it runs as a DaemonSet (chart nvdra-cd-plugin).
    """

    driver = names.COMPUTE_DOMAIN_DRIVER

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

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        imex_fields.check(self.imex_mode, self.feature_gates)
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
