"""Queries the node's clique: opens NVML, asks each GPU for its fabric info, closes NVML.

The query blocks: call it on the thread for NVML. Source: docs/reference/compute-domain.md, "Device
library", "Clique ID".
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import CliqueID
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver, Nvml, NvmlError
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.fabric import clique
from nvdra_cd_plugin.fabric.clique import GpuFabricInfo

LOG = logs.logger(__name__)

_LIBRARY: Final = "libnvidia-ml.so.1"


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


class FabricQuery:
    """Queries NVML for the node's clique."""

    def __init__(self, host: Host, policy: FabricPolicy, observe: CallObserver) -> None:
        """Create it without any query.

        Args:
            host: Where the driver's files are.
            policy: How strictly the fabric is checked.
            observe: Called with the duration and the result of each NVML call.
        """
        self._host = host
        self._policy = policy
        self._observe = observe
        self._loaded: tuple[Path, int, int, int] | None = None
        self._reload_count = -1
        self._accepted_driver = ""

    def run(self) -> CliqueID:
        """The node's clique at this moment.

        Raises:
            DriverError: `FabricError`; `DriverMismatch`: there is no driver, or NVML does not work.
        """
        try:
            library = self._host.find_library(_LIBRARY)
            self._count_reload(library)
            nvml = Nvml.load(library, self._observe, self._reload_count)
            try:
                return self._query(nvml)
            finally:
                nvml.close()
        except (OSError, NvmlError) as error:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"the NVIDIA driver of this node does not work: {error}",
                "install or repair the NVIDIA driver; the plugin continues as soon as it works",
            ) from error

    def _query(self, nvml: Nvml) -> CliqueID:
        infos: list[GpuFabricInfo] = []
        for index in range(nvml.device_count()):
            gpu = nvml.handle_by_index(index)
            info = nvml.fabric_info(gpu)
            if info is not None:
                infos.append(
                    GpuFabricInfo(gpu.uuid, info.state, info.status, info.cluster, info.clique)
                )
        found = clique.clique_of(
            infos,
            is_strict=self._policy.is_strict,
            tolerates_unfinished=self._policy.tolerates_unfinished,
        )
        if found and self._policy.requires_dns_names:  # without a fabric IMEX resolves no names
            self._check_driver(nvml.driver_version())
        return found

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
