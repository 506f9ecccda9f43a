# SPDX-License-Identifier: Apache-2.0
"""Generate CDI edits and specs for NVIDIA devices.

`nvml_spec`, `imex_spec`, `management_spec`, `gated_spec` and `mig_capability_spec` generate whole
specs, like `nvidia-ctk cdi generate`.
Callers with their own device names combine the parts: `common_edits` once, `gpu_edits` or
`mig_edits` per device, and `assembly.assemble` for the spec. All functions read files and block:
call them on a worker thread. They cache nothing: call them again after the driver has changed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_cdi.nvidia import device_nodes, driver_files, edits, nvcaps
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_cdi.nvidia.facts import GpuDeviceNodes
from nvdra_cdi.nvidia.options import (
    AnyDevice,
    Feature,
    GatedMode,
    Gpu,
    MigDevice,
    Naming,
    NoDevice,
    Options,
    join_root,
    strip_root,
)
from nvdra_cdi.rooted_files import RootedFiles

_THIS_HOST = RootedFiles()
_CHANNEL = "0*[0-9]{1,7}"
_LAST_CHANNEL = 2**20 - 1
"""The largest minor of a device node."""
_NO_DEVICE_EDITS = ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))


def common_edits(options: Options, host: RootedFiles = _THIS_HOST) -> ContainerEdits:
    """The edits for every container with a GPU: control nodes, driver files, hooks, environment.

    Raises:
        DiscoveryError: There is no driver below `options.driver_root`, or its version is not
            `options.driver_version`.
    """
    root, sysfs = host.subtree(options.driver_root), host.subtree(options.sys_root)
    driver = driver_files.discover(root, sysfs, options)
    return edits.common(options, driver, device_nodes.control_nodes(host.subtree(options.dev_root)))


def ipc_edits(options: Options, host: RootedFiles = _THIS_HOST) -> ContainerEdits:
    """The part of `common_edits` for the sockets of the driver's services that run now.

    A service may start or stop at any time, and a container needs none of them. A caller that keeps
    a spec while services come and go generates the common edits with `Feature.NO_IPC` and adds
    these.
    """
    root = host.subtree(options.driver_root)
    return edits.ipc(options, driver_files.sockets(root), driver_files.mps_pipe(root))


def gpu_edits(options: Options, gpu: Gpu, host: RootedFiles = _THIS_HOST) -> ContainerEdits:
    """The edits for a GPU: its device nodes and links to them.

    Raises:
        DiscoveryError: The GPU's device node does not exist below `options.dev_root`.
    """
    devices, sysfs = host.subtree(options.dev_root), host.subtree(options.sys_root)
    return edits.gpu(options, gpu, device_nodes.gpu_nodes(devices, sysfs, gpu))


def mig_edits(
    options: Options, device: MigDevice, host: RootedFiles = _THIS_HOST
) -> ContainerEdits:
    """The edits for a MIG device: the device nodes of its GPU and of its capabilities.

    Raises:
        DiscoveryError: The GPU's device node does not exist below `options.dev_root`, or the kernel
            module does not know the instance.
    """
    devices, sysfs = host.subtree(options.dev_root), host.subtree(options.sys_root)
    capabilities = nvcaps.mig_capabilities(host.subtree(options.proc_root), device)
    if device.is_graphics:
        found = device_nodes.gpu_nodes(devices, sysfs, device.parent)
    else:
        found = GpuDeviceNodes((device_nodes.gpu_node(devices, device.parent),), ())
    return edits.mig(options, found, capabilities)


def nvml_spec(
    options: Options,
    devices: Iterable[AnyDevice],
    namings: Sequence[Naming] = (Naming.INDEX, Naming.UUID),
    kind: str = "nvidia.com/gpu",
    host: RootedFiles = _THIS_HOST,
) -> Spec:
    """A spec of GPUs and MIG devices, each once per naming. `select` selects devices.

    Raises:
        DiscoveryError: There are no devices, or as for `common_edits`, `gpu_edits`, `mig_edits`.
    """
    common = common_edits(options, host)
    found = [
        Device(name, made, annotations=_annotations(options, device))
        for device in devices
        for made in (_device_edits(options, device, host),)
        for name in dict.fromkeys(device.name(naming) for naming in namings)
    ]
    if not found:
        raise DiscoveryError("no GPUs or MIG devices on this node: are they bound to the driver?")
    return assemble(kind, common, found)


def select(devices: Iterable[Gpu | MigDevice], identifiers: Sequence[str] = ()) -> list[AnyDevice]:
    """The devices with these identifiers, in order, without duplicates.

    Args:
        devices: All devices of the node: each GPU, followed by its MIG devices.
        identifiers: `0`, `0:1`, a UUID in any of its forms, `all` or `none`. The first `all` or
            `none` overrides all other identifiers. No identifiers mean `all`: GPUs without MIG
            mode, then MIG devices.

    Raises:
        DiscoveryError: The node does not have such a device.

    Source: docs/reference/cdi.md §13.2.
    """
    known = list(devices)
    keyword = next((name for name in identifiers if name in ("all", "none")), None)
    if keyword == "none":
        return [NoDevice()]
    if keyword == "all" or not identifiers:
        whole = [one for one in known if isinstance(one, Gpu) and not one.has_mig_mode]
        return [*whole, *(one for one in known if isinstance(one, MigDevice))]
    by_name = _identifiers(known)
    unknown = [name for name in identifiers if name not in by_name]
    if unknown:
        existing = ", ".join(one.name(Naming.INDEX) for one in known) or "none"
        raise DiscoveryError(f"no device {', '.join(unknown)} on this node; it has {existing}")
    return list(dict.fromkeys(by_name[name] for name in identifiers))


def imex_spec(
    options: Options,
    identifiers: Sequence[str] = ("all",),
    kind: str = "nvidia.com/imex-channel",
    host: RootedFiles = _THIS_HOST,
) -> Spec:
    """A spec of IMEX channels. Their numbers are the device names.

    Args:
        options: Only `dev_root` and `target_dev_root` are used.
        identifiers: `7`, `channel7`, or `all` for every channel that has a device node.
        kind: `vendor/class`.
        host: The files of the host.

    Raises:
        DiscoveryError: An identifier is not a channel, or a channel has no device node.
    """
    devices = host.subtree(options.dev_root)
    found: dict[int, Device] = {}
    for number in _channel_numbers(identifiers, devices):
        node = device_nodes.imex_channel(devices, number)
        if node is None:
            path = join_root(options.dev_root, device_nodes.channel_path(number))
            raise DiscoveryError(f"no device node {path}: is IMEX channel {number} created?")
        found[number] = Device(str(number), edits.imex_channel(options, node))
    if not found:
        raise DiscoveryError(f"no IMEX channel has a device node below {devices}")
    return assemble(kind, edits.imex(), found.values())


def gated_spec(
    options: Options, mode: GatedMode, kind: str = "", host: RootedFiles = _THIS_HOST
) -> Spec:
    """A spec with one device, `all`: the device nodes of another driver, and its files.

    Args:
        options: Roots and features are used.
        mode: The driver.
        kind: `vendor/class`. Default: `nvidia.com` and the mode.
        host: The files of the host.

    Raises:
        DiscoveryError: The driver has no device nodes.
    """
    nodes = device_nodes.gated_nodes(host.subtree(options.dev_root), mode)
    is_gds = mode is GatedMode.GDS
    files = driver_files.gds_files(host.subtree(options.driver_root)) if is_gds else ()
    device = Device("all", edits.gated(options, nodes, files))
    return assemble(kind or f"nvidia.com/{mode}", edits.gated_common(), [device])


def mig_capability_spec(
    options: Options,
    identifiers: Sequence[str],
    kind: str = "nvidia.com/mig-caps",
    host: RootedFiles = _THIS_HOST,
) -> Spec:
    """A spec of the capabilities to manage MIG devices, by name.

    Args:
        options: Roots and features are used.
        identifiers: `config`, `monitor` or both.
        kind: `vendor/class`.
        host: The files of the host.

    Raises:
        DiscoveryError: An identifier is neither, or the capability or its device node is missing.
    """
    paths = nvcaps.management_paths(host.subtree(options.proc_root), identifiers)
    devices = host.subtree(options.dev_root)
    found = [
        Device(name, edits.gated(options, (device_nodes.capability_node(devices, path),)))
        for name, path in paths.items()
    ]
    return assemble(kind, edits.gated_common(), found)


def management_spec(
    options: Options, kind: str = "management.nvidia.com/gpu", host: RootedFiles = _THIS_HOST
) -> Spec:
    """A spec with one device, `all`: all device nodes of the driver, for tools that manage GPUs.

    NVML and GPUs are not required.

    Raises:
        DiscoveryError: There is no driver, or it has no device nodes.
    """
    root, sysfs = host.subtree(options.driver_root), host.subtree(options.sys_root)
    driver = driver_files.discover(root, sysfs, options)
    devices = host.subtree(options.dev_root)
    found = device_nodes.management_nodes(devices)
    if not found:
        raise DiscoveryError(f"no NVIDIA device node below {devices}: is the driver loaded?")
    together = Device("all", edits.management(options, found))
    return assemble(kind, edits.management_common(options, driver), [together])


def _device_edits(options: Options, device: AnyDevice, host: RootedFiles) -> ContainerEdits:
    if isinstance(device, Gpu):
        return gpu_edits(options, device, host)
    if isinstance(device, MigDevice):
        return mig_edits(options, device, host)
    return _NO_DEVICE_EDITS


def _annotations(options: Options, device: AnyDevice) -> Mapping[str, str]:
    if Feature.COHERENT_ANNOTATIONS not in options.features or not isinstance(device, Gpu):
        return {}
    return {"gpu.nvidia.com/coherent": str(device.is_coherent).lower()}


def _identifiers(devices: Iterable[Gpu | MigDevice]) -> dict[str, Gpu | MigDevice]:
    found: dict[str, Gpu | MigDevice] = {}
    for device in devices:
        found[device.name(Naming.INDEX)] = found[device.uuid] = device
        if isinstance(device, MigDevice):
            found[device.legacy_uuid] = device
    return found


def _channel_numbers(identifiers: Sequence[str], devices: RootedFiles) -> list[int]:
    numbers: list[int] = []
    for identifier in identifiers:
        if identifier == "all":
            numbers += device_nodes.imex_channels(devices)
            continue
        digits = identifier.removeprefix("channel")
        if not re.fullmatch(_CHANNEL, digits) or int(digits) > _LAST_CHANNEL:
            raise DiscoveryError(
                f"{identifier!r} is not an IMEX channel: use 0 to {_LAST_CHANNEL}, channel0 to "
                f"channel{_LAST_CHANNEL}, or all"
            )
        numbers.append(int(digits))
    return numbers


def missing_paths(
    options: Options, container_edits: ContainerEdits, host: RootedFiles = _THIS_HOST
) -> list[str]:
    """The files of generated edits that the host no longer has, as paths on the host.

    Device nodes with another number, files outside the roots and files that the system does not
    let us look at count as missing. Capabilities of MIG do not, because the runtime creates their
    nodes. As this is called at every prepare, it only makes one `lstat` call per file: paths in
    generated edits contain no links.
    """
    devices, root = host.subtree(options.dev_root), host.subtree(options.driver_root)
    gone: list[str] = []
    for node in container_edits.device_nodes:
        path = node.host_path or node.path
        inside = strip_root(options.target_dev_root, path)
        if nvcaps.is_capability(node):
            continue
        if inside is None or not _is_device(devices, inside, node):
            gone.append(path)
    for mount in container_edits.mounts:
        inside = strip_root(options.target_driver_root, mount.host_path)
        if inside is None or not _exists(root, inside):
            gone.append(mount.host_path)
    return gone


def _exists(root: RootedFiles, path: str) -> bool:
    try:
        return root.lexists(path)
    except DiscoveryError:
        return False


def _is_device(devices: RootedFiles, path: str, node: DeviceNode) -> bool:
    try:
        entry = devices.lstat(path)
    except DiscoveryError:
        return False
    numbers = (node.major, node.minor)
    return entry is not None and entry.is_character_device and (entry.major, entry.minor) == numbers
