"""CDI written ahead: one spec for all devices of the node, named by a hash of what it says.

A spec is kept while a record names it, so that a driver upgrade never changes what a prepared claim
means. Preparing a whole GPU returns a name and writes nothing. Files block: called on a worker.
Source: design.md, "CDI written ahead"; spec/cdi.md §20.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import names
from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import DeviceName
from nvdra_cdi import codec, files
from nvdra_cdi.errors import CDIError, DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assemble import assemble
from nvdra_cdi.nvidia.options import Gpu as CdiGpu
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin import installation
from nvdra_gpu_plugin.installation import FileID
from nvdra_gpu_plugin.inventory import Fault, Gpu
from nvdra_gpu_plugin.plan import Generation

LOG = logs.logger(__name__)

_CLASS: Final = "device"
_HASH_DIGITS: Final = 10
"""40 bits: generations of one node are few, and a device's name stays readable."""
_ABANDONED_S: Final = 3600.0
"""No write of somebody else's takes so long: whoever began the file has died."""

Majors = Mapping[int, Collection[str]]
"""Drivers behind each major number, as `installation.majors` reads them."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The CDI spec of one generation of this node's devices.

    Attributes:
        generation: Its name, and the CDI name of each device in it.
        spec: What is on the disk.
        options: With which it was made; they say where its paths are seen from here.
        common: What every container with a GPU gets.
        own: What a container gets with one device, beside that.
        edits: Both together, by device.
    """

    generation: Generation
    spec: Spec
    options: Options
    common: ContainerEdits
    own: Mapping[DeviceName, ContainerEdits]
    edits: Mapping[DeviceName, ContainerEdits]

    def missing(self, device: DeviceName) -> list[str]:
        """What the device stands for and the host no longer has; one `lstat` per entry."""
        return generator.missing(self.options, self.edits[device])


def describe(
    gpus: Iterable[Gpu], options: Options, majors: Majors, before: NodeSpec | None
) -> tuple[NodeSpec, list[Fault]]:
    """Find out what containers need for each GPU of the node.

    Args:
        gpus: What is on the node.
        options: Where to look.
        majors: Of the node's character devices: a node whose driver is another's is none of ours.
        before: The last description of this very driver, if any. What it says of a board whose
            device node is missing now, or of files that are, still holds: what lacks them is not
            offered, and when they are back, nothing has another name.

    Returns:
        The spec, and the boards that are not in it because their device node is missing.

    Raises:
        DiscoveryError: The driver's files are not there.
    """
    common = generator.common_edits(options)
    if before is not None and _is_less(common, before.common):
        common = before.common
    _check_drivers(common, majors)
    own: dict[DeviceName, ContainerEdits] = {}
    faults: list[Fault] = []
    for gpu in gpus:
        try:
            own[gpu.name] = _own(gpu, options, majors)
        except DiscoveryError as error:
            if before is not None and before.common == common and gpu.name in before.own:
                own[gpu.name] = before.own[gpu.name]
            else:
                faults.append(Fault(gpu.name, str(error), Reason.DEVICE_NODE_MISSING))
    name = codec.digest(common, *own.values())[:_HASH_DIGITS]
    devices = [Device(f"{device}-{name}", edits) for device, edits in own.items()]
    spec = assemble(names.GPU_CDI_DEVICE_KIND, common, devices)
    ids = {device: f"{names.GPU_CDI_DEVICE_KIND}={device}-{name}" for device in own}
    edits = {device: common + found for device, found in own.items()}
    return NodeSpec(Generation(name, ids), spec, options, common, own, edits), faults


def _is_less(found: ContainerEdits, before: ContainerEdits) -> bool:
    """Whether something is gone and nothing else has come: an update brings files of its own."""
    given, had = ({*edits.mounts, *edits.device_nodes} for edits in (found, before))
    return given < had


def _own(gpu: Gpu, options: Options, majors: Majors) -> ContainerEdits:
    """What a container gets with this board.

    Raises:
        DiscoveryError: Its device node is missing, or is another device.
    """
    found = generator.gpu_edits(options, CdiGpu(gpu.uuid, gpu.minor, gpu.pci))
    _check_drivers(found, majors)
    for node in found.device_nodes:
        if node.path == f"/dev/nvidia{gpu.minor}" and node.minor != gpu.minor:
            raise DiscoveryError(
                f"{node.host_path or node.path} is device {node.major}:{node.minor}, another "
                "board's; remove it and run nvidia-modprobe -c0 -u"
            )
    return found


def _check_drivers(edits: ContainerEdits, majors: Majors) -> None:
    """A node that is left over or put there by hand may be any device.

    Raises:
        DiscoveryError: One is not of the driver that its name says.
    """
    for node in edits.device_nodes:
        drivers = majors.get(node.major) if node.major is not None else None
        if majors and not any(_is_driver_of(node, driver) for driver in drivers or ()):
            raise DiscoveryError(
                f"{node.host_path or node.path} is device {node.major}:{node.minor}, which is not "
                "of the NVIDIA driver; remove it and run nvidia-modprobe -c0 -u"
            )


def _is_driver_of(node: DeviceNode, driver: str) -> bool:
    return driver.startswith("drm" if node.path.startswith("/dev/dri/") else "nvidia")


class SpecFiles:
    """The specs of this driver in the directory that the container runtime reads.

    What was written, and what a record stands on, is remembered: a file that somebody removes or
    edits is put back.
    """

    def __init__(self, cdi_root: Path, clock: Clock) -> None:
        self._root = cdi_root
        self._clock = clock
        self._specs: dict[str, Spec] = {}
        self._files: dict[str, FileID] = {}

    def write(self, spec: NodeSpec) -> None:
        """Put the spec there, unless it already is.

        Raises:
            FileError: The system refused.
        """
        if spec.spec.devices:
            generation = spec.generation.name
            self._specs[generation] = spec.spec
            self._keep(generation)

    def keep(self) -> None:
        """Put back what was removed or edited.

        Raises:
            FileError: The system refused.
        """
        for generation in list(self._specs):
            self._keep(generation)

    def has(self, generation: str) -> bool:
        """Whether the runtime can find the generation's devices."""
        return self._path(generation).is_file()

    def retire(self, kept: Collection[str]) -> None:
        """Remove every generation that is not `kept`, and what writers that died left half done.

        Raises:
            FileError: The system refused; the rest stays, too.
        """
        prefix = files.transient_name(names.GPU_CDI_VENDOR, _CLASS, "*")
        for path in self._root.glob(prefix):
            generation = path.stem.rpartition("_")[2]
            if generation in kept:
                self._remember(generation)
            else:
                self._specs.pop(generation, None)
                files.remove(path)
        # Ours are written on this very thread by the one plugin of the node: nobody is at it now.
        files.remove_abandoned(self._root, before=inf, owner=f"{names.GPU_CDI_VENDOR}-{_CLASS}_")
        files.remove_abandoned(self._root, before=self._clock.now().timestamp() - _ABANDONED_S)

    def _keep(self, generation: str) -> None:
        path, spec = self._path(generation), self._specs[generation]
        there = _file_id(path)
        if there is None or there != self._files.get(generation):
            if not _says(path, spec):
                files.write(spec, path)
                LOG.info("A CDI spec is written", file=str(path))
            self._files[generation] = installation.file_id(path)

    def _remember(self, generation: str) -> None:
        """Take over a spec that an earlier process wrote and a record stands on."""
        if generation in self._specs:
            return
        path = self._path(generation)
        try:
            self._specs[generation] = files.read(path)
        except CDIError as error:
            LOG.warning("A CDI spec of prepared claims cannot be read", error=str(error))
        else:
            self._files[generation] = installation.file_id(path)

    def _path(self, generation: str) -> Path:
        return self._root / files.transient_name(names.GPU_CDI_VENDOR, _CLASS, generation)


def _file_id(path: Path) -> FileID | None:
    try:
        return installation.file_id(path)
    except OSError:
        return None


def _says(path: Path, spec: Spec) -> bool:
    try:
        return path.read_bytes() == codec.dumps(spec, "yaml")
    except OSError:
        return False
