"""What the node's GPUs say of their NVLink fabric → the node's clique, or why it has none yet.

Source: spec/compute-domain.md §7.4, §14.4 (KW-65).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from uuid import UUID

from nvdra_api.types.domains import NO_CLIQUE
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.types.ids import CliqueID, GpuUUID

SUCCESS: Final = 0
"""`status` of a GPU that has joined; anything else is an NVML return code."""

LEAST_DRIVER_FOR_NAMES: Final = "570.158.01"
"""The first driver whose IMEX looks names up again when it is told to."""

_LOOK_FOR: Final = (
    "see `nvidia-smi -q` on the node, section Fabric, and the fabric manager of the rack"
)


class State(IntEnum):
    """How far a GPU is on its way into the fabric (`nvmlGpuFabricState_t`)."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """What one GPU says; a GPU without such a thing as a fabric says nothing.

    Attributes:
        gpu: Which one.
        state: A `State`.
        status: How joining ended; counts only once it is completed.
        cluster: UUID of the cluster; all zero with NVLink inside one node.
        clique: Number of the clique in the cluster.
    """

    gpu: GpuUUID
    state: int
    status: int
    cluster: UUID
    clique: int

    @property
    def is_attached(self) -> bool:
        """Whether it has joined a fabric of several nodes."""
        is_joined = self.state == State.COMPLETED and self.status == SUCCESS
        return is_joined and self.cluster.int != 0


def clique(
    observations: Iterable[Observation], *, is_strict: bool, tolerates_unfinished: bool = False
) -> CliqueID:
    """The clique that the node's GPUs are in; `NO_CLIQUE` without a fabric of several nodes.

    Args:
        observations: What each GPU says.
        is_strict: Gate `CrashOnNVLinkFabricErrors`: a GPU on its way into the fabric, or that
            failed to join, is told of; else it counts as having none.
        tolerates_unfinished: The fabric is the node's own and is set up in parts: a GPU that has
            not joined it is as it should be.

    Raises:
        RetryableError: `FabricError`: GPUs are still on their way; it passes by itself.
        PermanentError: `FabricError`: one failed, or they are in different cliques.
    """
    seen = tuple(observations)
    if is_strict:
        _check(seen, tolerates_unfinished)
    joined = {(each.cluster, each.clique) for each in seen if each.is_attached}
    if not joined:
        return NO_CLIQUE
    if len(joined) > 1:
        told = ", ".join(f"{cluster}.{number}" for cluster, number in sorted(joined))
        raise _refused(f"the GPUs of this node are in several NVLink cliques: {told}")
    ((cluster, number),) = joined
    return CliqueID(f"{cluster}.{number}")


def check_driver(version: str) -> None:
    """Refuse a driver whose IMEX cannot find peers by name.

    Raises:
        PermanentError: `DriverMismatch`.
    """
    if _numbers(version) < _numbers(LEAST_DRIVER_FOR_NAMES):
        raise PermanentError(
            Reason.DRIVER_MISMATCH,
            f"the IMEX of driver {version} does not find peers by name; the first that does is of "
            f"{LEAST_DRIVER_FOR_NAMES}",
            "upgrade the driver, or set the feature gate IMEXDaemonsWithDNSNames=false on the "
            "controller and on all nodes",
        )


def _check(seen: Sequence[Observation], tolerates_unfinished: bool) -> None:
    unfinished = [each for each in seen if each.state not in (State.NOT_SUPPORTED, State.COMPLETED)]
    if unfinished and not tolerates_unfinished:
        told = ", ".join(f"{each.gpu} ({_state(each.state)})" for each in unfinished)
        raise RetryableError(
            Reason.FABRIC_ERROR,
            f"GPUs of this node have not joined the NVLink fabric: {told}",
            f"nothing for the first minutes after a boot; then {_LOOK_FOR}",
        )
    failed = [e for e in seen if e.state == State.COMPLETED and e.status != SUCCESS]
    if failed:
        told = ", ".join(f"{each.gpu} (NVML error {each.status})" for each in failed)
        raise _refused(f"GPUs of this node failed to join the NVLink fabric: {told}")


def _refused(message: str) -> DriverError:
    return PermanentError(Reason.FABRIC_ERROR, message, _LOOK_FOR)


def _state(state: int) -> str:
    try:
        return State(state).name.lower().replace("_", " ")
    except ValueError:
        return f"state {state}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))
