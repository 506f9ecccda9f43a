# SPDX-License-Identifier: Apache-2.0
"""The flags of this component, in one model.

`settings.loader.load` fills the model once, from flags and environment; nothing else reads them.
Names and defaults are those of the reference driver (docs/reference/compute-domain.md, "Flags of
the plugin").
"""

from pathlib import Path
from typing import Annotated, Self

from nvdra_api import names
from nvdra_runtime.computedomain import imex_settings
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.settings.loader import Flag
from pydantic import Field, model_validator


class Settings(PluginSettings):
    """DRA driver compute-domain.nvidia.com: makes a node a member of ComputeDomains.

    It publishes the node's IMEX channel and labels the node for the domain of a workload that is
    scheduled to it. It gives the domain's daemon the devices and files that it needs, and gives the
    workload its channels as soon as that daemon is ready. In a cluster it runs as a DaemonSet
    (chart nvdra-cd-plugin).
    """

    driver = names.COMPUTE_DOMAIN_DRIVER

    namespace: Annotated[str, Flag(group="Domains")] = Field(
        default="default",
        min_length=1,
        description="Namespace of the driver. It contains the daemons and cliques of all domains.",
    )
    additional_namespaces: str = Field(
        default="",
        description="Namespaces, separated by commas, in which the driver was installed before and "
        "its daemons may still run. The controller must have the same value.",
    )
    imex_mode: imex_settings.ImexMode = "driverManaged"
    imex_isolation: imex_settings.ImexIsolation = "domain"
    imex_host_socket_path: Path = Field(
        default=Path("/etc/nvidia-imex/imex_ctrl.sock"),
        description="Path on the host of the socket of the host's own nvidia-imex, for "
        "--imex-mode=hostManaged.",
    )
    gpu_clique_label_enabled: bool = Field(
        default=False,
        description=f"Whether to write the node's NVLink clique to its label "
        f"{names.GPU_CLIQUE_LABEL}.",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        imex_settings.check_mode(self.imex_mode, self.feature_gates)
        return self

    @property
    def is_host_managed(self) -> bool:
        """Whether the host runs IMEX; then this driver runs no daemons."""
        return self.imex_mode == imex_settings.HOST_MANAGED

    @property
    def managed_namespaces(self) -> tuple[str, ...]:
        """The namespaces in which daemons may be, without duplicates; the driver's own first."""
        more = (name.strip() for name in self.additional_namespaces.split(","))
        return tuple(dict.fromkeys((self.namespace, *filter(None, more))))
