# SPDX-License-Identifier: Apache-2.0
"""The CDI spec of the node: one for all GPUs and MIG devices, written before a claim is prepared.

There is one spec for each version of the driver, its generation. It is kept while a record names
it, so that a driver upgrade does not change what a prepared claim refers to. A device's name
contains a hash of its GPU, the driver's version and the device's own edits: neighbours, files that
are added to the driver, its services and the major numbers of a boot do not change it. To prepare a
whole GPU, a name is returned and nothing is written. Source: docs/design.md, "CDI written ahead";
docs/reference/cdi.md §20.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from nvdra_api import names
from nvdra_api.errors import Reason
from nvdra_api.ids import DeviceName, DeviceUUID, MigUUID
from nvdra_cdi import codec, transforms
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_cdi.nvidia import driver_files, generator
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.nvidia.options import Feature, Options, join_root
from nvdra_cdi.nvidia.options import Gpu as CdiGpu
from nvdra_cdi.nvidia.options import MigDevice as CdiMigDevice
from nvdra_cdi.rooted_files import RootedFiles

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Device as GpuOrMig
from nvdra_gpu_plugin.devices.inventory import Fault, Gpu
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.driver import installation

_SMI: Final = "nvidia-smi"
_HASH_DIGITS: Final = 10
"""40 bits: a node has few devices, and device names stay readable."""

_UVM: Final = "/dev/nvidia-uvm"
"""The one device node beside the GPUs' that CUDA cannot do without: it fails with "initialization
error" or 999, and a container can neither load the module nor make the node. nvidia-uvm-tools and
nvidia-modeset are for profilers and displays. Source: docs/decisions/gpu-plugin.md."""

_LIBCUDA: Final = re.compile(r"/libcuda\.so\.([0-9][^/]*\.[^/]+)")

_NOT_IN_FILE_NAMES: Final = re.compile(r"[^0-9A-Za-z.-]")

DriversByMajor = Mapping[int, Collection[str]]
"""Kernel drivers by major number, from `installation.drivers_by_major`."""

_THIS_HOST = RootedFiles()


class Instances(NamedTuple):
    """The instances of NVML that a MIG device consists of."""

    uuid: MigUUID
    gpu_instance: int
    compute_instance: int
    has_graphics: bool


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The CDI spec of one generation.

    Attributes:
        generation: Its name, and the CDI name of each device in it.
        options: The options that it was generated with.
        common_edits: What every container with a GPU gets, without `sockets`.
        sockets: The sockets of the driver's services, which may come and go at any time.
        device_edits: What a container gets for one device in addition, by device.
        container_edits: Common and device edits together, by device.
        devices: The device of each GPU and MIG device. A GPU in MIG mode has one, too: claims that
            were answered with it keep it.
    """

    generation: SpecGeneration
    options: Options
    common_edits: ContainerEdits
    sockets: ContainerEdits
    device_edits: Mapping[DeviceName, ContainerEdits]
    container_edits: Mapping[DeviceName, ContainerEdits]
    devices: Mapping[DeviceUUID, DeviceName]

    @property
    def cdi_names(self) -> Mapping[str, DeviceUUID]:
        """The CDI names of the devices, without the kind, and the GPU of each."""
        ids = self.generation.cdi_ids
        return {ids[device].partition("=")[2]: uuid for uuid, device in self.devices.items()}

    @property
    def programs_remark(self) -> str:
        """What containers lack of the driver's programs; empty if it is nothing."""
        mounts = self.common_edits.mounts
        if any(mount.container_path.endswith(f"/{_SMI}") for mount in mounts):
            return ""
        return (
            f"{_SMI} is not below the driver root {self.options.target_driver_root}, so that "
            "containers have none; if the node has it elsewhere, correct the chart's "
            "global.nvidiaDriverRoot, which is then often the directory above"
        )

    def document(self, cdi_names: Mapping[str, DeviceUUID]) -> Spec:
        """The content of the file.

        Args:
            cdi_names: Names that claims were answered with and that these devices have, too. Names
                of devices that are not on the node are left out.
        """
        wanted = {**cdi_names, **self.cdi_names}
        devices = [
            Device(name, self.device_edits[self.devices[uuid]])
            for name, uuid in wanted.items()
            if uuid in self.devices and _is_name_of(name, self.devices[uuid])
        ]
        return assemble(names.GPU_CDI_DEVICE_KIND, self.common_edits + self.sockets, devices)

    def missing_paths(self, device: DeviceName) -> list[str]:
        """Paths that the device needs and the host does not have; one `lstat` per path."""
        return generator.missing_paths(self.options, self.container_edits[device])

    def lacks_socket(self) -> bool:
        """Whether a service has stopped whose socket is in the spec; one `lstat` per socket."""
        return bool(generator.missing_paths(self.options, self.sockets))

    def with_present_sockets(self) -> "NodeSpec":
        """The spec with the sockets of the services that run now."""
        return replace(self, sockets=generator.ipc_edits(self.options))


def without_driver(options: Options) -> NodeSpec:
    """The spec of a node without NVIDIA's driver, whose GPUs may be passed to virtual machines."""
    nothing = ContainerEdits()
    return NodeSpec(SpecGeneration("", {}), options, nothing, nothing, {}, {}, {})


def _is_name_of(cdi_name: str, device: DeviceName) -> bool:
    """Whether the name can mean this device.

    NVML derives the UUID of a MIG device from its place, so that one of another profile may have it
    after an administrator has divided the GPU anew.
    """
    now = device_names.parse_mig_name(device)
    before = device_names.parse_mig_name(cdi_name.rpartition("-")[0])
    return now is None or (before is not None and before[1:] == now[1:])


def with_sockets(document: Spec, sockets: ContainerEdits) -> Spec:
    """The document of any generation, with these sockets instead of those that it has."""
    edits = document.container_edits
    others = tuple(
        mount for mount in edits.mounts if not driver_files.is_socket(mount.container_path)
    )
    edits = replace(edits, mounts=(*others, *sockets.mounts))
    return transforms.order(replace(document, container_edits=edits))


def driver_version(document: Spec) -> str:
    """The version of the driver whose libraries the document mounts; empty if it has none."""
    for mount in document.container_edits.mounts:
        found = _LIBCUDA.search(mount.container_path)
        if found is not None:
            return found[1]
    return ""


def build_node_spec(
    gpus: Collection[Gpu],
    options: Options,
    majors: DriversByMajor,
    previous: NodeSpec | None,
    host: RootedFiles = _THIS_HOST,
) -> tuple[NodeSpec, list[Fault]]:
    """Find out what containers need for each GPU of the node.

    Args:
        gpus: The node's GPUs, with the driver's version as NVML reports it. Libraries of another
            version that were left in the driver root are not for containers.
        options: Where to look.
        majors: Drivers of the node's character devices, to recognize stale device nodes.
        previous: The former spec of the same driver. It is reused for a GPU whose device node is
            missing, and for files that are missing: such GPUs are not published, and keep their
            CDI names when the files are back.
        host: The files of the host.

    Returns:
        The spec, and why GPUs and MIG devices are not in it: as `_device_edits`, or because the
        device node of nvidia-uvm is missing, which all need.

    Raises:
        DiscoveryError: The driver's files are missing, or are of another version.
    """
    driver_version = next((gpu.driver_version for gpu in gpus), "")
    options = options.model_copy(update={"driver_version": driver_version or None})
    without_ipc = options.model_copy(update={"features": options.features | {Feature.NO_IPC}})
    common = generator.common_edits(without_ipc, host)
    _check_drivers(common, majors)
    if previous is not None and _lacks_files(common, previous.common_edits):
        common = previous.common_edits
    device_edits: dict[DeviceName, ContainerEdits] = {}
    devices: dict[DeviceUUID, DeviceName] = {}
    usable = gpus if _has_uvm(common) else ()
    faults = [_missing_uvm_fault(gpu, options) for gpu in gpus if not usable]
    for gpu in usable:
        parts: tuple[GpuOrMig, ...] = (gpu, *gpu.mig_devices)
        for device in parts:
            edits = _device_edits(gpu, device, options, majors, previous, host)
            if isinstance(edits, Fault):
                faults.append(edits)
            else:
                device_edits[device.name], devices[device.uuid] = edits, device.name
    cdi_ids = {
        device: _cdi_id(driver_version, uuid, device, device_edits[device])
        for uuid, device in devices.items()
    }
    spec = NodeSpec(
        generation=SpecGeneration(_NOT_IN_FILE_NAMES.sub("-", driver_version), cdi_ids),
        options=options,
        common_edits=common,
        sockets=generator.ipc_edits(options, host),
        device_edits=device_edits,
        container_edits={device: common + edits for device, edits in device_edits.items()},
        devices=devices,
    )
    return spec, faults


def _cdi_id(version: str, uuid: DeviceUUID, device: DeviceName, edits: ContainerEdits) -> str:
    """The CDI name of a device, whose hash tells it from others of its name.

    It is the same in every boot of this driver.
    """
    nodes = tuple(replace(node, major=0) for node in edits.device_nodes)
    content = codec.digest(replace(edits, device_nodes=nodes))
    whole = "\n".join((version, uuid, content))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{names.GPU_CDI_DEVICE_KIND}={device}-{digest}"


def _lacks_files(found: ContainerEdits, previous: ContainerEdits) -> bool:
    """Whether nvidia-uvm is missing; or others, and none are new, as they are after an update."""
    if _has_uvm(previous) and not _has_uvm(found):
        return True
    present, expected = ({*edits.mounts, *edits.device_nodes} for edits in (found, previous))
    return present < expected


def _has_uvm(edits: ContainerEdits) -> bool:
    return any(node.path == _UVM for node in edits.device_nodes)


def _missing_uvm_fault(gpu: Gpu, options: Options) -> Fault:
    path = join_root(options.target_dev_root, _UVM)
    return Fault(
        gpu.name,
        f"{gpu.name} ({gpu.uuid}) needs {path}, which is not on the node; run nvidia-modprobe "
        "-c0 -u there, or in the driver container, and at every boot; it is offered once it is "
        "there",
        Reason.DEVICE_NODE_MISSING,
    )


def _device_edits(
    gpu: Gpu,
    device: GpuOrMig,
    options: Options,
    majors: DriversByMajor,
    previous: NodeSpec | None,
    host: RootedFiles,
) -> ContainerEdits | Fault:
    """What a container gets for this GPU, or for a MIG device of it.

    Returns:
        A fault if its device node is missing, or is another device, or if the kernel module does
        not know the MIG instance; unless the previous spec has the device.
    """
    try:
        if isinstance(device, Gpu):
            parent = CdiGpu(gpu.uuid, gpu.minor, gpu.pci, has_mig_mode=gpu.is_mig_enabled)
            edits = generator.gpu_edits(options, parent, host)
            _check_nodes(gpu, edits, majors)
            return edits
        instances = Instances(
            device.uuid, device.gpu_instance, device.compute_instance, device.has_graphics
        )
        return mig_edits(gpu, instances, options, majors, host)
    except DiscoveryError as error:
        if previous is not None and previous.devices.get(device.uuid) == device.name:
            return previous.device_edits[device.name]
        text = installation.with_remedy(error)
        return Fault(device.name, text, Reason.DEVICE_NODE_MISSING)


def mig_edits(
    gpu: Gpu,
    instances: Instances,
    options: Options,
    majors: DriversByMajor,
    host: RootedFiles = _THIS_HOST,
) -> ContainerEdits:
    """What a container gets for a MIG device of this GPU.

    Raises:
        DiscoveryError: The GPU's device node is missing, or is another device; or the kernel module
            does not know the MIG instance.
    """
    device = CdiMigDevice(
        instances.uuid,
        CdiGpu(gpu.uuid, gpu.minor, gpu.pci, has_mig_mode=True),
        instances.gpu_instance,
        instances.compute_instance,
        index=0,  # it is part of names that are not used here
        is_graphics=instances.has_graphics,
    )
    edits = generator.mig_edits(options, device, host)
    _check_nodes(gpu, edits, majors)
    return edits


def _check_nodes(gpu: Gpu, edits: ContainerEdits, majors: DriversByMajor) -> None:
    """Check that the device nodes are those of this GPU.

    Raises:
        DiscoveryError: One is another device.
    """
    _check_drivers(edits, majors)
    for node in edits.device_nodes:
        if node.path == f"/dev/nvidia{gpu.minor}" and node.minor != gpu.minor:
            raise DiscoveryError(
                f"{node.host_path or node.path} is device {node.major}:{node.minor}, another "
                "GPU's; remove it and run nvidia-modprobe -c0 -u"
            )


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
