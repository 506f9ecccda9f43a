# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainDaemonConfig: the config of an IMEX daemon's claim.

Source: docs/reference/api-types.md, "ComputeDomainChannelConfig and ComputeDomainDaemonConfig".
"""

from typing import ClassVar, Final, Self

from pydantic import Field

from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1.device_config import DeviceConfig, NullableText
from nvdra_api.validation import Problem

NO_DOMAIN: Final = Problem(
    "domainID",
    "domainID cannot be empty",
    remedy="use the claim template that the ComputeDomain names, which has its UID",
)


class ComputeDomainDaemonConfig(DeviceConfig):
    """The config of an IMEX daemon's claim. The controller writes it into its claim templates."""

    kind: ClassVar[str] = "ComputeDomainDaemonConfig"
    domain_id: NullableText = Field(
        default="",
        alias="domainID",
        description="UID of the ComputeDomain.",
        json_schema_extra={"required": True, "minLength": 1},
    )

    def normalized(self, gates: FeatureGates) -> Self:
        """Return this config; it has no implied defaults."""
        return self

    def problems(self, gates: FeatureGates) -> tuple[Problem, ...]:
        """Return a problem if the domain ID is empty."""
        return () if self.domain_id else (NO_DOMAIN,)
