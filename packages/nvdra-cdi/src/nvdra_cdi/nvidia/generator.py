"""Generate CDI edits and specs of NVIDIA devices: the way into this subpackage.

`nvml`, `imex` and `management` answer whole specs, as `nvidia-ctk cdi generate` does. Callers with
names and specs of their own take the parts: `common_edits` once, `gpu_edits` or `mig_edits` per
device, `assemble.assemble` for the spec. All read files and block: run them on a worker thread.
They keep nothing: call them again when the driver has changed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.host import Entry, Host
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_cdi.nvidia import discover, edits, nodes, nvcaps
from nvdra_cdi.nvidia.assemble import assemble
from nvdra_cdi.nvidia.facts import GpuNodes
from nvdra_cdi.nvidia.options import (
    AnyDevice,
    Feature,
    Gpu,
    MigDevice,
    Naming,
    NoDevice,
    Options,
    joined,
    split_off,
)

_HERE = Host()
_CHANNEL = "0*[0-9]{1,7}"
_LAST_CHANNEL = 2**20 - 1
"""The largest minor of a device node."""
_NOTHING = ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))


def common_edits(options: Options, host: Host = _HERE) -> ContainerEdits:
    """What every container with a GPU needs: control nodes, driver files, hooks, environment.

    Raises:
        DiscoveryError: No driver below `options.driver_root`, or of another version than
            `options.driver_version`.
    """
    root, sysfs = host.under(options.driver_root), host.under(options.sys_root)
    driver = discover.driver(root, sysfs, options)
    return edits.common(options, driver, nodes.control_nodes(host.under(options.dev_root)))


def gpu_edits(options: Options, gpu: Gpu, host: Host = _HERE) -> ContainerEdits:
    """What a container needs to use this GPU: its nodes, and links to them.

    Raises:
        DiscoveryError: The GPU's device node is not below `options.dev_root`.
    """
    devices, sysfs = host.under(options.dev_root), host.under(options.sys_root)
    return edits.gpu(options, gpu, nodes.gpu_nodes(devices, sysfs, gpu))


def mig_edits(options: Options, device: MigDevice, host: Host = _HERE) -> ContainerEdits:
    """What a container needs to use this MIG device: its GPU's node, and the right to its part.

    Raises:
        DiscoveryError: The GPU's device node is not below `options.dev_root`, or the kernel module
            does not know the instance.
    """
    devices, sysfs = host.under(options.dev_root), host.under(options.sys_root)
    capabilities = nvcaps.of_mig_device(host.under(options.proc_root), device)
    if device.is_graphics:
        found = nodes.gpu_nodes(devices, sysfs, device.parent)
    else:
        found = GpuNodes((nodes.gpu_node(devices, device.parent),), ())
    return edits.mig(options, found, capabilities)


def nvml(
    options: Options,
    devices: Iterable[AnyDevice],
    namings: Sequence[Naming] = (Naming.INDEX, Naming.UUID),
    kind: str = "nvidia.com/gpu",
    host: Host = _HERE,
) -> Spec:
    """A spec of GPUs and MIG devices, each once per naming; see `select` for which.

    Raises:
        DiscoveryError: There is no device; or see `common_edits`, `gpu_edits` and `mig_edits`.
    """
    common = common_edits(options, host)
    found = [
        Device(name, made, annotations=_annotations(options, device))
        for device in devices
        for made in (_edits_of(options, device, host),)
        for name in dict.fromkeys(device.name(naming) for naming in namings)
    ]
    if not found:
        raise DiscoveryError("no GPU and no MIG device on this node: are they bound to the driver?")
    return assemble(kind, common, found)


def select(devices: Iterable[Gpu | MigDevice], identifiers: Sequence[str] = ()) -> list[AnyDevice]:
    """The devices that identifiers mean, in their order, each once (spec/cdi.md §13.2).

    Args:
        devices: All of the node: each GPU, and its MIG devices.
        identifiers: `0`, `0:1`, a UUID in any of its forms, `all` or `none`; the first of the last
            two wins over everything else. None at all is `all`: GPUs without MIG mode, then MIG
            devices.

    Raises:
        DiscoveryError: There is no such device.
    """
    known = list(devices)
    word = next((name for name in identifiers if name in ("all", "none")), None)
    if word == "none":
        return [NoDevice()]
    if word == "all" or not identifiers:
        whole = [one for one in known if isinstance(one, Gpu) and not one.has_mig_mode]
        return [*whole, *(one for one in known if isinstance(one, MigDevice))]
    by_name = _identifiers(known)
    unknown = [name for name in identifiers if name not in by_name]
    if unknown:
        there = ", ".join(one.name(Naming.INDEX) for one in known) or "none"
        raise DiscoveryError(f"no device {', '.join(unknown)} on this node; it has {there}")
    return list(dict.fromkeys(by_name[name] for name in identifiers))


def imex(
    options: Options,
    identifiers: Sequence[str] = ("all",),
    kind: str = "nvidia.com/imex-channel",
    host: Host = _HERE,
) -> Spec:
    """A spec of IMEX channels, each called by its number.

    Args:
        options: Of them only the dev root and its target count.
        identifiers: `7`, `channel7`, or `all` for every channel that has a node.
        kind: `vendor/class`.
        host: Where to look.

    Raises:
        DiscoveryError: An identifier names no channel, or a channel has no node.
    """
    devices = host.under(options.dev_root)
    found: dict[int, Device] = {}
    for number in _channels(identifiers, devices):
        node = nodes.imex_channel(devices, number)
        if node is None:
            path = joined(options.dev_root, nodes.channel_path(number))
            raise DiscoveryError(f"no device node {path}: is IMEX channel {number} created?")
        found[number] = Device(str(number), edits.imex_channel(options, node))
    if not found:
        raise DiscoveryError(f"no IMEX channel has a device node below {devices}")
    return assemble(kind, edits.imex(), found.values())


def management(
    options: Options, kind: str = "management.nvidia.com/gpu", host: Host = _HERE
) -> Spec:
    """A spec of one device, `all`: every node of the driver's, for who manages GPUs.

    NVML need not work, and no GPU need be there.

    Raises:
        DiscoveryError: There is no driver, or it has no device node.
    """
    root, sysfs = host.under(options.driver_root), host.under(options.sys_root)
    driver = discover.driver(root, sysfs, options)
    devices = host.under(options.dev_root)
    found = nodes.management_nodes(devices)
    if not found:
        raise DiscoveryError(f"no NVIDIA device node below {devices}: is the driver loaded?")
    together = Device("all", edits.management(options, found))
    return assemble(kind, edits.management_common(options, driver), [together])


def _edits_of(options: Options, device: AnyDevice, host: Host) -> ContainerEdits:
    if isinstance(device, Gpu):
        return gpu_edits(options, device, host)
    if isinstance(device, MigDevice):
        return mig_edits(options, device, host)
    return _NOTHING


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


def _channels(identifiers: Sequence[str], devices: Host) -> list[int]:
    numbers: list[int] = []
    for identifier in identifiers:
        if identifier == "all":
            numbers += nodes.imex_channels(devices)
            continue
        digits = identifier.removeprefix("channel")
        if not re.fullmatch(_CHANNEL, digits) or int(digits) > _LAST_CHANNEL:
            raise DiscoveryError(
                f"{identifier!r} is no IMEX channel: give 0 to {_LAST_CHANNEL}, channel0 to "
                f"channel{_LAST_CHANNEL}, or all"
            )
        numbers.append(int(digits))
    return numbers


def missing(options: Options, written: ContainerEdits, host: Host = _HERE) -> list[str]:
    """What our edits name and the host no longer has: paths, as the host sees them.

    A device node that became another device counts as missing, and so does what lies outside the
    roots; a capability of MIG does not, since the runtime makes its node. Asked at every prepare:
    one `lstat` per entry and no other call to the system, since generated edits name what is behind
    no links.
    """
    devices, root = host.under(options.dev_root), host.under(options.driver_root)
    gone: list[str] = []
    for node in written.device_nodes:
        path = node.host_path or node.path
        inside = split_off(options.target_dev_root, path)
        if nvcaps.is_capability(node):
            continue
        if inside is None or not _is_device(devices.lstat(inside), node):
            gone.append(path)
    for mount in written.mounts:
        inside = split_off(options.target_driver_root, mount.host_path)
        if inside is None or not root.has(inside):
            gone.append(mount.host_path)
    return gone


def _is_device(entry: Entry | None, node: DeviceNode) -> bool:
    numbers = (node.major, node.minor)
    return entry is not None and entry.is_character_device and (entry.major, entry.minor) == numbers
