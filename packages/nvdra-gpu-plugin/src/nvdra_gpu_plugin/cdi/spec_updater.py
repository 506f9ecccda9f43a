# SPDX-License-Identifier: Apache-2.0
"""Generates the node's CDI spec when GPUs or the driver's files have changed, and writes it.

These calls block: they run on the thread for files.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName
from nvdra_cdi.errors import CDIError, FileError
from nvdra_cdi.model import ContainerEdits
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.options import Options
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi import node_spec
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.devices.inventory import Fault, Gpu
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.installation import DeviceNodes, LibraryID
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable

LOG = logs.logger(__name__)

_REBUILD_S: Final = 60.0
"""After this time the spec of an unchanged driver is generated again, because an installer does not
say when it has written its last file. The time doubles each time that the spec is the same. Missing
files and device nodes are checked every time."""

_MAX_REBUILD_S: Final = 3600.0

_KEEP_REPLACED_S: Final = 600.0
"""How long the previous generation is kept for a claim that is just being prepared from it. The
kubelet's deadline is 45 s."""


class SpecState(NamedTuple):
    """The current spec.

    Attributes:
        gpus: The GPUs that it was generated for.
        spec: The spec of those that have a device node.
        faults: Why the others are not in it.
        missing_paths: Paths that devices in the spec need and the host does not have.
        write_fault: Why a newer spec could not be written; this one is still used.
        nodes: The device nodes when it was generated.
        driver: The driver's library.
        built_at: When it was generated, in monotonic seconds; minus infinity makes it due.
        rebuild_after_s: For how long it is not generated again.
        replaced_at: When each generation was replaced; infinity for this one.
    """

    gpus: tuple[Gpu, ...]
    spec: NodeSpec
    faults: tuple[Fault, ...]
    missing_paths: dict[DeviceName, list[str]]
    write_fault: Fault | None
    nodes: DeviceNodes
    driver: LibraryID
    built_at: float
    rebuild_after_s: float
    replaced_at: Mapping[str, float]

    def recent_generations(self, now: float) -> Collection[str]:
        """Generations that a claim may just be prepared from, although no record names them yet."""
        return [name for name, at in self.replaced_at.items() if now - at < _KEEP_REPLACED_S]

    def is_current(
        self, gpus: tuple[Gpu, ...], nodes: DeviceNodes, sockets: ContainerEdits, now: float
    ) -> bool:
        """Whether the spec need not be generated again."""
        has_new_nodes = not nodes.items() <= self.nodes.items()
        if gpus != self.gpus or self.write_fault is not None or has_new_nodes:
            return False
        if sockets != self.spec.sockets:
            return False
        return now - self.built_at < self.rebuild_after_s


class SpecUpdater:
    """Generates specs and writes them.

    Attributes:
        options: Returns the options of the next spec.
    """

    def __init__(
        self, host: Host, options: Callable[[], Options], spec_files: SpecFiles, clock: Clock
    ) -> None:
        """Create an updater.

        Args:
            host: Where procfs is.
            options: Returns the options; called each time, as device nodes may move with a driver.
            spec_files: Writes the specs.
            clock: For the time between two generations.
        """
        self._host = host
        self.options = options
        self._spec_files = spec_files
        self._clock = clock

    def update(
        self, gpus: tuple[Gpu, ...], driver: LibraryID, previous: SpecState | None
    ) -> SpecState:
        """Generate and write the spec of these GPUs, if the previous one is not current any more.

        As long as the driver is the same, a file or device node that disappears is reported as
        missing, and does not change the spec. The sockets of the driver's services are in it while
        they exist.

        Raises:
            DriverUnavailable: The driver's files are missing, or the spec cannot be written.
        """
        options, now = self.options(), self._clock.monotonic()
        nodes = installation.device_nodes(Path(options.dev_root, "dev"))
        if previous is not None:
            previous = previous._replace(missing_paths=_missing_paths(previous.spec))
            is_current = previous.is_current(gpus, nodes, generator.ipc_edits(options), now)
            # A claim may have written it without the socket of a service that runs again.
            if is_current and self._spec_files.is_written(previous.spec):
                return previous
        same_driver = previous is not None and previous.driver == driver
        former_spec = previous.spec if previous is not None and same_driver else None
        majors = installation.drivers_by_major(self._host)
        try:
            spec, faults = node_spec.build_node_spec(gpus, options, majors, former_spec)
        except CDIError as error:
            text = str(error)
            if options.target_driver_root != options.driver_root:
                text += f" ({options.target_driver_root} on the node)"
            raise DriverUnavailable(Reason.DRIVER_MISMATCH, text) from error
        try:
            self._spec_files.write(spec)
        except FileError as error:
            fault = Fault(
                "", f"their CDI spec is not up to date: {error}", Reason.DEVICE_NODE_MISSING
            )
            if previous is None or previous.spec.common_edits != spec.common_edits:
                raise DriverUnavailable(fault.reason, fault.text) from error
            return previous._replace(write_fault=fault)
        if spec.programs_remark and (former_spec is None or not former_spec.programs_remark):
            LOG.warning("Containers lack a program of the driver", problem=spec.programs_remark)
        rebuild_after_s = _REBUILD_S
        if previous is not None and previous.spec == spec:
            rebuild_after_s = min(2 * previous.rebuild_after_s, _MAX_REBUILD_S)
        return SpecState(
            gpus=gpus,
            spec=spec,
            faults=tuple(faults),
            missing_paths=_missing_paths(spec),
            write_fault=None,
            nodes=nodes,
            driver=driver,
            built_at=now,
            rebuild_after_s=rebuild_after_s,
            replaced_at=replaced(previous.replaced_at if previous else {}, spec, now),
        )


def replaced(former: Mapping[str, float], spec: NodeSpec, now: float) -> Mapping[str, float]:
    """When each generation was replaced, after this spec has been written."""
    earlier = {name: min(at, now) for name, at in former.items()}
    return {**earlier, spec.generation.name: math.inf}


def _missing_paths(spec: NodeSpec) -> dict[DeviceName, list[str]]:
    return {device: paths for device in spec.device_edits if (paths := spec.missing_paths(device))}
