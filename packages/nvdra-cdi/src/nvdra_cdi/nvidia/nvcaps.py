# SPDX-License-Identifier: Apache-2.0
"""The capabilities of MIG instances: the device nodes that give access to them.

A container gets the node of the GPU instance and that of the compute instance. The kernel module
lists their minor numbers in procfs. The nodes need not exist on the host, because the runtime
creates them from their numbers.

Source: docs/reference/cdi.md §16.2.
"""

import logging
from collections.abc import Sequence

from nvdra_cdi.errors import DiscoveryError, MissingCapabilitiesError
from nvdra_cdi.model import DeviceNode
from nvdra_cdi.nvidia.facts import CAPABILITY_NODES, Capability
from nvdra_cdi.nvidia.options import MigDevice
from nvdra_cdi.rooted_files import RootedFiles

MAJOR_NAME = "nvidia-caps"
_CAPABILITIES = "/driver/nvidia/capabilities"
_MINORS = "/driver/nvidia-caps/mig-minors"
_MANAGEMENT = ("config", "monitor")
_DEVICES = "/devices"
_ACCESS_MODE = 0o444

_log = logging.getLogger(__name__)


def mig_capabilities(proc: RootedFiles, device: MigDevice) -> tuple[Capability, Capability]:
    """The capabilities of a MIG device's GPU instance and compute instance.

    Raises:
        MissingCapabilitiesError: The kernel module has not registered a major number for them.
        DiscoveryError: The kernel module does not know the instance.
    """
    major = capabilities_major(proc)
    minor, instance, compute = device.parent.minor, device.gpu_instance, device.compute_instance
    directory = f"{_CAPABILITIES}/gpu{minor}/mig/gi{instance}"
    computed = access_minor(minor, instance)
    return (
        _read_capability(proc, device, f"{directory}/access", major, computed),
        _read_capability(
            proc, device, f"{directory}/ci{compute}/access", major, computed + 1 + compute
        ),
    )


def management_paths(proc: RootedFiles, names: Sequence[str]) -> dict[str, str]:
    """The paths of the device nodes that give access to the management of MIG, by capability.

    Args:
        proc: procfs.
        names: `config` (to create and destroy instances) or `monitor`, at least one.

    Raises:
        DiscoveryError: A name is neither, or the kernel module does not know the capability.
    """
    for name in names:
        if name not in _MANAGEMENT:
            raise DiscoveryError(f"{name!r} is not a MIG capability: use config or monitor")
    if not names:
        raise DiscoveryError("no MIG capability is asked for: use config or monitor")
    content = proc.read(_MINORS)
    if content is None:
        raise DiscoveryError(f"no {_MINORS} below {proc}: this node cannot have MIG devices")
    lines = (line.partition(" ") for line in content.decode(errors="replace").splitlines())
    minors = {name: number.strip() for name, _, number in lines}
    for name in names:
        if not minors.get(name, "").isdigit():
            raise DiscoveryError(f"{_MINORS} below {proc} does not contain the minor of {name}")
    return {name: f"{CAPABILITY_NODES}/nvidia-cap{minors[name]}" for name in names}


def access_minor(gpu_minor: int, gpu_instance: int) -> int:
    """The minor of a GPU instance's node. The minor of its compute instance c is 1 + c higher."""
    return 3 + 135 * gpu_minor + 9 * gpu_instance


def is_capability(node: DeviceNode) -> bool:
    """Whether generated edits contain this node as a capability."""
    return node.path.startswith(f"{CAPABILITY_NODES}/") and not node.permissions


def capabilities_major(proc: RootedFiles) -> int:
    """The major number that the kernel module registered for the device nodes of capabilities.

    Raises:
        MissingCapabilitiesError: `/proc/devices` does not list it.
    """
    text = (proc.read(_DEVICES) or b"").decode(errors="replace")
    section = ""
    for line in text.splitlines():
        number, _, found = line.strip().partition(" ")
        if line.endswith(":"):
            section = line
        elif section == "Character devices:" and found == MAJOR_NAME and number.isdigit():
            return int(number)
    path = f"{str(proc).rstrip('/')}{_DEVICES}"
    raise MissingCapabilitiesError(f"{path} does not list {MAJOR_NAME}")


def _read_capability(
    proc: RootedFiles, device: MigDevice, path: str, major: int, computed_minor: int
) -> Capability:
    content = proc.read(path)
    if content is None and proc.follow(_CAPABILITIES) is None:
        _log.info("no %s below %s: the minor of %s is computed", _CAPABILITIES, proc, device.uuid)
        return Capability(major, computed_minor, _ACCESS_MODE)
    if content is None:
        raise DiscoveryError(
            f"no {path} below {proc} for {device.uuid}: its MIG instance does not exist"
        )
    lines = (line.partition(":") for line in content.decode(errors="replace").splitlines())
    facts = {key: value.strip() for key, _, value in lines}
    try:
        found = Capability(major, int(facts["DeviceFileMinor"]), int(facts["DeviceFileMode"]))
    except (KeyError, ValueError) as error:
        raise DiscoveryError(
            f"{path} below {proc} does not contain the minor and mode of its device node"
        ) from error
    if found.minor != computed_minor:
        _log.warning("%s contains minor %d, expected %d", path, found.minor, computed_minor)
    return found
