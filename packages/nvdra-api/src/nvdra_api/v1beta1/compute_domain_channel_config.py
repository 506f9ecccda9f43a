# SPDX-License-Identifier: Apache-2.0
"""ComputeDomainChannelConfig: the config of an IMEX channel.

Source: docs/reference/api-types.md, "ComputeDomainChannelConfig and ComputeDomainDaemonConfig".
"""

from typing import ClassVar, Self

from pydantic import Field

from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1.compute_domain import AllocationMode
from nvdra_api.v1beta1.compute_domain_daemon_config import NO_DOMAIN
from nvdra_api.v1beta1.device_config import DeviceConfig, NullableText
from nvdra_api.validation import Problem


class ComputeDomainChannelConfig(DeviceConfig):
    """The config of an IMEX channel. The controller writes it into its claim templates."""

    kind: ClassVar[str] = "ComputeDomainChannelConfig"
    domain_id: NullableText = Field(
        default="",
        alias="domainID",
        description="UID of the ComputeDomain.",
        json_schema_extra={"required": True, "minLength": 1},
    )
    allocation_mode: NullableText = Field(
        default="",
        description="Single is one channel, All every channel of the node. Empty means Single.",
        json_schema_extra={"enum": ["", *AllocationMode]},
    )

    def normalized(self, gates: FeatureGates) -> Self:
        """Write out the default allocation mode, `Single`."""
        mode = self.allocation_mode or str(AllocationMode.SINGLE)
        return self.model_copy(update={"allocation_mode": mode})

    def problems(self, gates: FeatureGates) -> tuple[Problem, ...]:
        """Return the problems of the domain ID and the allocation mode.

        Whether the domain ID is a UUID is not checked, because existing manifests use other values.
        """
        problems = []
        if not self.domain_id:
            problems.append(NO_DOMAIN)
        if self.allocation_mode not in ("", *AllocationMode):
            text = (
                f"unknown allocation mode: {self.allocation_mode}, "
                f"supported allocation modes: {', '.join(AllocationMode)}"
            )
            problems.append(Problem("allocationMode", text))
        return tuple(problems)
