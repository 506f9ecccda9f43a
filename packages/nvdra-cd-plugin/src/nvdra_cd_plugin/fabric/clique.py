# SPDX-License-Identifier: Apache-2.0
"""The node's NVLink clique, by what each of its GPUs reports, or why it is unknown.

Source: docs/reference/compute-domain.md, "Clique ID", "Observability" (KW-65).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from uuid import UUID

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import CliqueID, GpuUUID
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE

SUCCESS: Final = 0
"""The `status` of a GPU that joined the fabric; every other value is an NVML return code."""

MIN_DRIVER_FOR_DNS_NAMES: Final = "570.158.01"
"""The first driver whose IMEX resolves names again when it gets SIGUSR1."""

_REMEDY: Final = (
    "see `nvidia-smi -q` on the node, section Fabric, and the fabric manager of the rack"
)


class GpuFabricState(IntEnum):
    """The progress of a GPU that joins the fabric (`nvmlGpuFabricState_t`)."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


@dataclass(frozen=True, slots=True)
class GpuFabricInfo:
    """What one GPU reports; there is none for a GPU that does not support a fabric.

    Attributes:
        gpu: The GPU.
        state: A `GpuFabricState`.
        status: The result of joining; valid only in state COMPLETED.
        cluster: The UUID of the cluster; all zero if NVLink stays inside one node.
        clique: The number of the clique in the cluster.
    """

    gpu: GpuUUID
    state: int
    status: int
    cluster: UUID
    clique: int

    @property
    def is_attached(self) -> bool:
        """Whether the GPU has joined a fabric that spans nodes."""
        is_joined = self.state == GpuFabricState.COMPLETED and self.status == SUCCESS
        return is_joined and self.cluster.int != 0


def clique_of(
    infos: Iterable[GpuFabricInfo], *, is_strict: bool, tolerates_unfinished: bool = False
) -> CliqueID:
    """The clique of the node's GPUs; `NO_CLIQUE` without a fabric that spans nodes.

    Args:
        infos: What each GPU reports.
        is_strict: Gate `CrashOnNVLinkFabricErrors`: a GPU that has not joined the fabric yet, or
            that failed to, is an error; otherwise it counts as a GPU without a fabric.
        tolerates_unfinished: The fabric belongs to the node alone and is set up in parts, so a GPU
            that has not joined it is no error.

    Raises:
        RetryableError: `FabricError`: some GPUs are still joining; that ends by itself.
        PermanentError: `FabricError`: a GPU failed to join, or the GPUs are in different cliques.
    """
    seen = tuple(infos)
    if is_strict:
        _check_joined(seen, tolerates_unfinished)
    joined = {(each.cluster, each.clique) for each in seen if each.is_attached}
    if not joined:
        return NO_CLIQUE
    if len(joined) > 1:
        listed = ", ".join(f"{cluster}.{number}" for cluster, number in sorted(joined))
        raise _fabric_error(f"the GPUs of this node are in several NVLink cliques: {listed}")
    ((cluster, number),) = joined
    return CliqueID(f"{cluster}.{number}")


def check_driver(version: str) -> None:
    """Refuse a driver whose IMEX cannot find its peers by name.

    Raises:
        PermanentError: `DriverMismatch`.
    """
    if _version_numbers(version) < _version_numbers(MIN_DRIVER_FOR_DNS_NAMES):
        raise PermanentError(
            Reason.DRIVER_MISMATCH,
            f"the IMEX of driver {version} cannot find its peers by DNS name; driver "
            f"{MIN_DRIVER_FOR_DNS_NAMES} is the first one that can",
            "upgrade the driver, or set the feature gate IMEXDaemonsWithDNSNames=false on the "
            "controller and on all nodes",
        )


def left_error(former: CliqueID) -> PermanentError:
    """What it means that no GPU is in a fabric after they were in the clique `former`."""
    return PermanentError(
        Reason.FABRIC_ERROR,
        f"the GPUs of this node are in no NVLink fabric any more; they were in clique {former}",
        f"{_REMEDY}; if they do not join it again, drain the node and reboot it",
    )


def _check_joined(seen: Sequence[GpuFabricInfo], tolerates_unfinished: bool) -> None:
    settled = (GpuFabricState.NOT_SUPPORTED, GpuFabricState.COMPLETED)
    unfinished = [each for each in seen if each.state not in settled]
    if unfinished and not tolerates_unfinished:
        listed = ", ".join(f"{each.gpu} ({_state_name(each.state)})" for each in unfinished)
        raise RetryableError(
            Reason.FABRIC_ERROR,
            f"GPUs of this node have not joined the NVLink fabric: {listed}",
            f"in the first minutes after a boot, wait; after that, {_REMEDY}",
        )
    failed = [e for e in seen if e.state == GpuFabricState.COMPLETED and e.status != SUCCESS]
    if failed:
        listed = ", ".join(f"{each.gpu} (NVML error {each.status})" for each in failed)
        raise _fabric_error(f"GPUs of this node failed to join the NVLink fabric: {listed}")


def _fabric_error(message: str) -> DriverError:
    return PermanentError(Reason.FABRIC_ERROR, message, _REMEDY)


def _state_name(state: int) -> str:
    try:
        return GpuFabricState(state).name.lower().replace("_", " ")
    except ValueError:
        return f"state {state}"


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))
