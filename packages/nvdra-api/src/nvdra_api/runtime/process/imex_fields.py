"""Settings of who runs IMEX, which controller and plugins of ComputeDomains must agree on.

Names, defaults and what goes with what are the reference's (spec/compute-domain.md §4.2).
"""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from nvdra_api.types.gates import Feature, Gates

HOST_MANAGED: Final = "hostManaged"


def _isolation(isolation: str) -> str:
    if isolation == "channel":
        raise ValueError("channel is not implemented; leave it at domain")
    if isolation not in ("", "domain"):
        raise ValueError("must be domain")
    return "domain"


ImexMode = Annotated[
    Literal["driverManaged", "hostManaged"],
    Field(
        description="Who runs nvidia-imex: the daemons of each domain, or the host (alpha, gate "
        "HostManagedIMEXDaemon)."
    ),
]

ImexIsolation = Annotated[
    str,
    AfterValidator(_isolation),
    Field(description="domain; channel is not implemented, here or elsewhere."),
]


def check(mode: str, gates: Gates) -> None:
    """Refuse a mode that its gate does not allow.

    Raises:
        ValueError: `hostManaged` without the gate.
    """
    if mode == HOST_MANAGED and not gates.is_on(Feature.HOST_MANAGED_IMEX):
        raise ValueError(
            f"--imex-mode={HOST_MANAGED} needs the feature gate "
            f"{Feature.HOST_MANAGED_IMEX}=true (--feature-gates)"
        )
