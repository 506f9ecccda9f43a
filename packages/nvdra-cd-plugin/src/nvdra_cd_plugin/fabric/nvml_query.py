# SPDX-License-Identifier: Apache-2.0
"""Queries the node's clique: opens NVML, asks each GPU for its fabric info, closes NVML.

The query blocks: call it on the thread for NVML. Source: docs/reference/compute-domain.md, "Device
library", "Clique ID".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import CliqueID
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver, Nvml, NvmlError
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.fabric import clique
from nvdra_cd_plugin.fabric.clique import GpuFabricInfo

LOG = logs.logger(__name__)

_LIBRARY: Final = "libnvidia-ml.so.1"
_SWITCH_TIMEOUT_S: Final = 5.0
"""How long a query waits while a GPU is taken from the driver."""


@dataclass(frozen=True, slots=True)
class FabricPolicy:
    """How strictly the fabric is checked; follows from the feature gates.

    Attributes:
        is_strict: See `clique.clique_of`.
        tolerates_unfinished: See `clique.clique_of`.
        requires_dns_names: The driver's IMEX must find its peers by name.
    """

    is_strict: bool
    tolerates_unfinished: bool
    requires_dns_names: bool


@dataclass(frozen=True, slots=True)
class FabricAnswer:
    """What the node's GPUs say.

    Attributes:
        clique: The node's clique; empty without a fabric, None if `problem` leaves none.
        problem: `FabricError`: why there is no clique; `DeviceUnhealthy`: which GPUs have not
            answered; None if all have.
        is_attached: Whether a GPU is in a fabric that spans nodes.
    """

    clique: CliqueID | None
    problem: DriverError | None = None
    is_attached: bool = True


def find_library(host: Host) -> Path:
    """NVML of the node's driver.

    Raises:
        OSError: It is not there, or that cannot be found out.
    """
    return host.find_library(_LIBRARY)


def driver_error(error: Exception) -> RetryableError:
    """What the failure of a query means that no GPU is the cause of."""
    return RetryableError(
        Reason.DRIVER_MISMATCH,
        f"the NVIDIA driver of this node does not work: {error}",
        "install or repair the NVIDIA driver; the plugin continues as soon as it works",
    )


class FabricQuery:
    """Queries NVML for the node's clique."""

    def __init__(
        self, host: Host, policy: FabricPolicy, observe: CallObserver, hold: SessionHold
    ) -> None:
        """Create it without any query.

        Args:
            host: Where the driver's files are.
            policy: How strictly the fabric is checked.
            observe: Called with the duration and the result of each NVML call.
            hold: Held during the query: no GPU is taken from the driver meanwhile.
        """
        self._host = host
        self._policy = policy
        self._observe = observe
        self._hold = hold
        self._loaded: tuple[Path, int, int, int] | None = None
        self._reload_count = -1
        self._accepted_driver = ""

    def run(self) -> FabricAnswer:
        """The node's clique at this moment. GPUs that fail alone are left out.

        Raises:
            DriverError: `DriverMismatch`: there is no driver, or NVML does not work;
                `DeviceUnhealthy`: no GPU answers.
        """
        try:
            library = find_library(self._host)
            self._count_reload(library)
            if not self._hold.acquire_within(_SWITCH_TIMEOUT_S):
                raise _switching_error()
            nvml = Nvml.load(library, self._observe, self._reload_count)
            try:
                return self._query(nvml)
            finally:
                nvml.close()
        except (OSError, NvmlError) as error:
            raise driver_error(error) from error
        finally:
            self._hold.release()

    def _query(self, nvml: Nvml) -> FabricAnswer:
        infos: list[GpuFabricInfo] = []
        failures: list[NvmlError] = []
        count = nvml.device_count()
        for index in range(count):
            try:
                infos += _query_gpu(nvml, index)
            except NvmlError as error:
                if error.is_driver_error:
                    raise
                failures.append(error)
        if failures and len(failures) == count:
            raise _unhealthy_error("no GPU of this node answers", failures)
        is_attached = any(info.is_attached for info in infos)
        try:
            found = clique.clique_of(
                infos,
                is_strict=self._policy.is_strict,
                tolerates_unfinished=self._policy.tolerates_unfinished,
            )
        except DriverError as error:
            return FabricAnswer(None, error, is_attached)
        if found and self._policy.requires_dns_names:  # without a fabric IMEX resolves no names
            self._check_driver(nvml.driver_version())
        if not failures:
            return FabricAnswer(found, is_attached=is_attached)
        problem = _unhealthy_error("GPUs of this node do not answer", failures)
        return FabricAnswer(found, problem, is_attached)

    def _check_driver(self, version: str) -> None:
        clique.check_driver(version)
        if version != self._accepted_driver:
            self._accepted_driver = version
            LOG.info("The driver's IMEX finds its peers by name", driver=version)

    def _count_reload(self, library: Path) -> None:
        """Count the different files that were loaded from the path; see `Nvml.load`."""
        status = library.stat()
        file = (library, status.st_dev, status.st_ino, status.st_mtime_ns)
        if file != self._loaded:
            self._loaded, self._reload_count = file, self._reload_count + 1


def _query_gpu(nvml: Nvml, index: int) -> Sequence[GpuFabricInfo]:
    """What one GPU reports; empty if it supports no fabric."""
    gpu = nvml.handle_by_index(index)
    info = nvml.fabric_info(gpu)
    if info is None:
        return ()
    return (GpuFabricInfo(gpu.uuid, info.state, info.status, info.cluster, info.clique),)


def _switching_error() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "a GPU of this node is being taken from the NVIDIA driver, so NVML is not opened",
        "this continues by itself; if it lasts, the command status of the GPU plugin names the GPU",
    )


def _unhealthy_error(what: str, failures: Sequence[NvmlError]) -> PermanentError:
    return PermanentError(
        Reason.DEVICE_UNHEALTHY,
        f"{what}: {'; '.join(map(str, failures))}",
        "look for Xid messages in the node's kernel log; release NVML on the node and reset the "
        "GPUs, or reboot the node",
    )
