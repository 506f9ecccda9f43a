"""Generate the edits of whole GPUs: the way into this subpackage.

Three calls describe a node: `common_edits` once, `gpu_edits` per GPU, `assemble.assemble` for the
spec. They read files and block; run them on a worker thread. They keep nothing: call them again
when the driver has changed.
"""

from nvdra_cdi.host import Entry, Host
from nvdra_cdi.model import ContainerEdits, DeviceNode
from nvdra_cdi.nvidia import discover, edits
from nvdra_cdi.nvidia.options import Gpu, Options, split_off

_HERE = Host()


def common_edits(options: Options, host: Host = _HERE) -> ContainerEdits:
    """What every container with a GPU needs: control nodes, driver files, hooks, environment.

    Raises:
        DiscoveryError: No driver below `options.driver_root`, or of another version than
            `options.driver_version`.
    """
    root, sysfs = host.under(options.driver_root), host.under(options.sys_root)
    driver = discover.driver(root, sysfs, options.driver_version)
    return edits.common(options, driver, discover.control_nodes(host.under(options.dev_root)))


def gpu_edits(options: Options, gpu: Gpu, host: Host = _HERE) -> ContainerEdits:
    """What a container needs to use this GPU: its nodes, and links to them.

    Raises:
        DiscoveryError: The GPU's device node is not below `options.dev_root`.
    """
    devices, sysfs = host.under(options.dev_root), host.under(options.sys_root)
    return edits.gpu(options, gpu, discover.gpu_nodes(devices, sysfs, gpu))


def missing(options: Options, written: ContainerEdits, host: Host = _HERE) -> list[str]:
    """What our edits name and the host no longer has: paths, as the host sees them.

    A device node that became another device counts as missing, and so does what lies outside the
    roots. Asked at every prepare: one `lstat` per entry and no other call to the system, since
    generated edits name what is behind no links.
    """
    devices, root = host.under(options.dev_root), host.under(options.driver_root)
    gone: list[str] = []
    for node in written.device_nodes:
        path = node.host_path or node.path
        inside = split_off(options.target_dev_root, path)
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
