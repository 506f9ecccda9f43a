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
from nvdra_api.types import names
from nvdra_api.types.ids import DeviceName
from nvdra_cdi import codec, files
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assemble import assemble
from nvdra_cdi.nvidia.options import Gpu as CdiGpu
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin.inventory import Fault, Gpu
from nvdra_gpu_plugin.plan import Generation

_CLASS: Final = "device"
_HASH_DIGITS: Final = 10
"""40 bits: generations of one node are few, and a device's name stays readable."""
_ABANDONED_S: Final = 3600.0
"""No write of somebody else's takes so long: whoever began the file has died."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The CDI spec of one generation of this node's devices.

    Attributes:
        generation: Its name, and the CDI name of each device in it.
        spec: What is on the disk.
        options: With which it was made; they say where its paths are seen from here.
        edits: All that a container gets with a device: the common edits and its own.
    """

    generation: Generation
    spec: Spec
    options: Options
    edits: Mapping[DeviceName, ContainerEdits]

    def missing(self, device: DeviceName) -> list[str]:
        """What the device stands for and the host no longer has; one `lstat` per entry."""
        return generator.missing(self.options, self.edits[device])


def describe(gpus: Iterable[Gpu], options: Options) -> tuple[NodeSpec, list[Fault]]:
    """Find out what containers need for each GPU of the node.

    Returns:
        The spec, and the boards that are not in it because their device node is missing.

    Raises:
        DiscoveryError: The driver's files are not there.
    """
    common = generator.common_edits(options)
    own: dict[DeviceName, ContainerEdits] = {}
    faults: list[Fault] = []
    for gpu in gpus:
        try:
            own[gpu.name] = generator.gpu_edits(options, CdiGpu(gpu.uuid, gpu.minor, gpu.pci))
        except DiscoveryError as error:
            faults.append(Fault(gpu.name, str(error)))
    name = codec.digest(common, *own.values())[:_HASH_DIGITS]
    devices = [Device(f"{device}-{name}", edits) for device, edits in own.items()]
    spec = assemble(names.GPU_CDI_DEVICE_KIND, common, devices)
    ids = {device: f"{names.GPU_CDI_DEVICE_KIND}={device}-{name}" for device in own}
    edits = {device: common + found for device, found in own.items()}
    return NodeSpec(Generation(name, ids), spec, options, edits), faults


class SpecFiles:
    """The specs of this driver in the directory that the container runtime reads."""

    def __init__(self, cdi_root: Path, clock: Clock) -> None:
        self._root = cdi_root
        self._clock = clock

    def write(self, spec: NodeSpec) -> None:
        """Put the spec there, unless it already is.

        Raises:
            FileError: The system refused.
        """
        if spec.spec.devices and not self.has(spec.generation.name):
            files.write(spec.spec, self._path(spec.generation.name))

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
            if path.stem.rpartition("_")[2] not in kept:
                files.remove(path)
        # Ours are written on this very thread by the one plugin of the node: nobody is at it now.
        files.remove_abandoned(self._root, before=inf, owner=f"{names.GPU_CDI_VENDOR}-{_CLASS}_")
        files.remove_abandoned(self._root, before=self._clock.now().timestamp() - _ABANDONED_S)

    def _path(self, generation: str) -> Path:
        return self._root / files.transient_name(names.GPU_CDI_VENDOR, _CLASS, generation)
