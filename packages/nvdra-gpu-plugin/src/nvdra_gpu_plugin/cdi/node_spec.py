"""The CDI spec of the node: one spec for all its GPUs, written before any claim is prepared.

A spec's name contains a hash of its content, its generation. As it is kept while a record names it,
a driver upgrade does not change what a prepared claim refers to. To prepare a whole GPU, a name is
returned and nothing is written. Source: docs/design.md, "CDI written ahead";
docs/reference/cdi.md §20.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from nvdra_api import names
from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName
from nvdra_cdi import codec
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.nvidia.options import Gpu as CdiGpu
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin.devices.inventory import Fault, Gpu
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration

_HASH_DIGITS: Final = 10
"""40 bits: a node has few generations, and device names stay readable."""

DriversByMajor = Mapping[int, Collection[str]]
"""Kernel drivers by major number, from `installation.drivers_by_major`."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The CDI spec of one generation.

    Attributes:
        generation: Its name, and the CDI name of each device in it.
        spec: The content of the file.
        options: The options that it was generated with.
        common_edits: What every container with a GPU gets.
        device_edits: What a container gets for one device in addition, by device.
        container_edits: Both together, by device.
    """

    generation: SpecGeneration
    spec: Spec
    options: Options
    common_edits: ContainerEdits
    device_edits: Mapping[DeviceName, ContainerEdits]
    container_edits: Mapping[DeviceName, ContainerEdits]

    def missing_paths(self, device: DeviceName) -> list[str]:
        """Paths that the device needs and the host does not have; one `lstat` per path."""
        return generator.missing_paths(self.options, self.container_edits[device])


def build_node_spec(
    gpus: Iterable[Gpu], options: Options, majors: DriversByMajor, previous: NodeSpec | None
) -> tuple[NodeSpec, list[Fault]]:
    """Find out what containers need for each GPU of the node.

    Args:
        gpus: The node's GPUs.
        options: Where to look.
        majors: Drivers of the node's character devices, to recognize stale device nodes.
        previous: The former spec of the same driver. It is reused for a GPU whose device node is
            missing, and for files that are missing: such GPUs are not published, and keep their
            CDI names when the files are back.

    Returns:
        The spec, and the GPUs that are not in it because their device nodes are missing.

    Raises:
        DiscoveryError: The driver's files are missing.
    """
    common = generator.common_edits(options)
    if previous is not None and _only_removes(common, previous.common_edits):
        common = previous.common_edits
    _check_drivers(common, majors)
    device_edits: dict[DeviceName, ContainerEdits] = {}
    faults: list[Fault] = []
    for gpu in gpus:
        try:
            device_edits[gpu.name] = _device_edits(gpu, options, majors)
        except DiscoveryError as error:
            if (
                previous is not None
                and previous.common_edits == common
                and gpu.name in previous.device_edits
            ):
                device_edits[gpu.name] = previous.device_edits[gpu.name]
            else:
                faults.append(Fault(gpu.name, str(error), Reason.DEVICE_NODE_MISSING))
    name = codec.digest(common, *device_edits.values())[:_HASH_DIGITS]
    devices = [Device(f"{device}-{name}", edits) for device, edits in device_edits.items()]
    spec = assemble(names.GPU_CDI_DEVICE_KIND, common, devices)
    ids = {device: f"{names.GPU_CDI_DEVICE_KIND}={device}-{name}" for device in device_edits}
    container_edits = {device: common + edits for device, edits in device_edits.items()}
    generation = SpecGeneration(name, ids)
    return NodeSpec(generation, spec, options, common, device_edits, container_edits), faults


def _only_removes(found: ContainerEdits, previous: ContainerEdits) -> bool:
    """Whether files are missing and none are new. An update of the driver brings new files."""
    present, expected = ({*edits.mounts, *edits.device_nodes} for edits in (found, previous))
    return present < expected


def _device_edits(gpu: Gpu, options: Options, majors: DriversByMajor) -> ContainerEdits:
    """What a container gets for this GPU.

    Raises:
        DiscoveryError: Its device node is missing, or is another device.
    """
    edits = generator.gpu_edits(options, CdiGpu(gpu.uuid, gpu.minor, gpu.pci))
    _check_drivers(edits, majors)
    for node in edits.device_nodes:
        if node.path == f"/dev/nvidia{gpu.minor}" and node.minor != gpu.minor:
            raise DiscoveryError(
                f"{node.host_path or node.path} is device {node.major}:{node.minor}, another "
                "GPU's; remove it and run nvidia-modprobe -c0 -u"
            )
    return edits


def _check_drivers(edits: ContainerEdits, majors: DriversByMajor) -> None:
    """Check device nodes: a stale one, or one that was made by hand, may be any device.

    Raises:
        DiscoveryError: A node does not belong to the driver that its name says.
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
