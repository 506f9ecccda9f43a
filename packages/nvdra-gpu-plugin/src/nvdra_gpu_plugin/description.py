"""Boards and the driver's files → what containers are given of them, on the disk.

A description is kept while it holds: a claim's answer names it. Blocks: called on the thread for
files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import DeviceName
from nvdra_cdi.errors import CDIError, FileError
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin import cdi_specs, installation
from nvdra_gpu_plugin.cdi_specs import NodeSpec, SpecFiles
from nvdra_gpu_plugin.installation import Loadable, Nodes
from nvdra_gpu_plugin.inventory import Fault, Gpu
from nvdra_gpu_plugin.sessions import NoDriver

_AGAIN_S: Final = 60.0
"""After so long a driver that has not changed is described anew, for files that came since, as
installers do not say when they are done; after twice as long each time that it says the same. What
is missing, and device nodes, are looked for each time."""

_LONGEST_S: Final = 3600.0


class Description(NamedTuple):
    """Boards, and the spec that was made of them.

    Attributes:
        gpus: All that have said what they are.
        spec: Of those with a device node.
        left_out: The others.
        missing: What devices in the spec stand for and the host does not have.
        trouble: Why the spec could not be written, while an older one serves.
        nodes: The device nodes that there were.
        driver: The library it is the driver of.
        at: When, in monotonic seconds.
        holds_s: How long it is not made anew.
    """

    gpus: tuple[Gpu, ...]
    spec: NodeSpec
    left_out: tuple[Fault, ...]
    missing: dict[DeviceName, list[str]]
    trouble: Fault | None
    nodes: Nodes
    driver: Loadable
    at: float
    holds_s: float

    def holds(self, gpus: tuple[Gpu, ...], nodes: Nodes, now: float) -> bool:
        """Whether describing again would only say the same, as far as that can be told."""
        has_more = not nodes.items() <= self.nodes.items()
        if gpus != self.gpus or self.trouble is not None or has_more:
            return False
        return now - self.at < self.holds_s


class Describer:
    """Makes descriptions, and puts their specs where the container runtime reads them."""

    def __init__(
        self, host: Host, options: Callable[[], Options], specs: SpecFiles, clock: Clock
    ) -> None:
        """`options` are asked each time: where the device nodes are may change with the driver."""
        self._host = host
        self._options = options
        self._specs = specs
        self._clock = clock

    def describe(
        self,
        gpus: tuple[Gpu, ...],
        driver: Loadable,
        before: Description | None,
        is_stale: bool,
    ) -> Description:
        """Describe these boards; `before` serves on if it still holds and nobody says it is stale.

        What vanishes from a driver is missing as long as it is the same one, not left out: `before`
        says what it had.

        Raises:
            NoDriver: The driver's files are not there, or the spec cannot be written.
        """
        options, now = self._options(), self._clock.monotonic()
        nodes = installation.nodes(Path(options.dev_root, "dev"))
        if before is not None and not is_stale:
            before = before._replace(missing=_missing(before.spec))
            if before.holds(gpus, nodes, now):
                return before
        former = before.spec if before is not None and before.driver == driver else None
        majors = installation.majors(self._host)
        try:
            spec, left_out = cdi_specs.describe(gpus, options, majors, former)
        except CDIError as error:
            raise NoDriver(Reason.DRIVER_MISMATCH, str(error)) from error
        try:
            self._specs.write(spec)
        except FileError as error:
            fault = Fault("", f"their CDI spec: {error}", Reason.DEVICE_NODE_MISSING)
            if before is None or before.spec.common != spec.common:
                raise NoDriver(fault.reason, fault.text) from error
            return before._replace(trouble=fault)
        holds_s = _AGAIN_S
        if before is not None and before.spec == spec:
            holds_s = min(2 * before.holds_s, _LONGEST_S)
        return Description(
            gpus, spec, tuple(left_out), _missing(spec), None, nodes, driver, now, holds_s
        )


def _missing(spec: NodeSpec) -> dict[DeviceName, list[str]]:
    return {device: gone for device in spec.own if (gone := spec.missing(device))}
