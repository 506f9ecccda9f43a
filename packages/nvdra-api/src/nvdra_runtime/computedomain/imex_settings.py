# SPDX-License-Identifier: Apache-2.0
"""Settings about who runs IMEX. Controller and plugins must have the same values.

Names, defaults and allowed combinations are those of the reference driver
(docs/reference/compute-domain.md, "IMEX mode and isolation").
"""

from typing import Annotated, Final, Literal

from nvdra_api.gates import Feature, FeatureGates
from pydantic import AfterValidator, Field

HOST_MANAGED: Final = "hostManaged"


def _check_isolation(isolation: str) -> str:
    if isolation == "channel":
        raise ValueError("channel is not implemented; leave it at domain")
    if isolation not in ("", "domain"):
        raise ValueError("must be domain")
    return "domain"


ImexMode = Annotated[
    Literal["driverManaged", "hostManaged"],
    Field(
        description="Who runs nvidia-imex: driverManaged (the daemons of each domain), or "
        "hostManaged (the hosts; alpha, feature gate HostManagedIMEXDaemon)."
    ),
]

ImexIsolation = Annotated[
    str,
    AfterValidator(_check_isolation),
    Field(description="Must be domain. The other value, channel, is reserved and not implemented."),
]


def check_mode(mode: str, gates: FeatureGates) -> None:
    """Refuse a mode whose feature gate is off.

    Raises:
        ValueError: `hostManaged` without the gate.
    """
    if mode == HOST_MANAGED and not gates.is_enabled(Feature.HOST_MANAGED_IMEX):
        raise ValueError(
            f"--imex-mode={HOST_MANAGED} needs the feature gate "
            f"{Feature.HOST_MANAGED_IMEX}=true (--feature-gates)"
        )
