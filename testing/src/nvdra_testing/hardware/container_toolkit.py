# SPDX-License-Identifier: Apache-2.0
"""Runs the real `nvidia-ctk cdi generate` on a simulated node, and lists deviations from it.

The toolkit reads sysfs and procfs at their usual paths only, so the simulated ones are mounted
there, which needs root. It also needs real device nodes: see `REAL_DEVICE_NODES`.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from nvdra_cdi import codec
from nvdra_cdi.model import Device, DeviceNode, Hook, Spec
from nvdra_sim.testing.node_fixtures import SimulatedNode

HOOK = "/usr/bin/nvidia-cdi-hook"
REAL_DEVICE_NODES = {"render": {"nodes": "real"}}
"""Sections of a node file with device nodes that can be stat-ed, which the toolkit requires."""

_IN_PLACE = """
mount --bind "$1" /sys
mount --bind "$2/driver" /proc/driver
mount --bind "$2/devices" /proc/devices
shift 2
exec "$@"
"""


def run_nvidia_ctk(
    nvidia_ctk: Path, node: SimulatedNode, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `nvidia-ctk cdi generate` for a node; its `dev` must be alone below its dev root."""
    return node.run(
        *("unshare", "--mount", "sh", "-c", _IN_PLACE, "sh", node.roots.sys, node.roots.proc),
        *(nvidia_ctk, "--quiet", "cdi", "generate", "--format=json"),
        f"--nvidia-cdi-hook-path={HOOK}",
        *(f"--driver-root={node.roots.driver}", f"--dev-root={node.roots.dev.parent}"),
        *arguments,
    )


def generate_spec(nvidia_ctk: Path, node: SimulatedNode, *arguments: str) -> Spec:
    """Generate a CDI spec with the toolkit."""
    result = run_nvidia_ctk(nvidia_ctk, node, *arguments)
    assert result.returncode == 0, result.stderr
    return codec.loads(result.stdout.encode())


@dataclass(frozen=True)
class Deviation:
    """A deliberate difference between our CDI specs and the toolkit's.

    Attributes:
        name: What differs.
        source: The section of the specification.
        reason: Why we differ.
        apply: Changes a spec of the toolkit into the form of ours.
    """

    name: str
    source: str
    reason: str
    apply: Callable[[Spec, SimulatedNode], Spec]


def with_deviations(theirs: Spec, node: SimulatedNode) -> Spec:
    """The toolkit's spec with all listed deviations applied."""
    for deviation in DEVIATIONS:
        theirs = deviation.apply(theirs, node)
    return theirs


def _with_types(spec: Spec, _: SimulatedNode) -> Spec:
    return _each_node(spec, lambda node: replace(node, type="c"))


def _with_links_in_the_container(spec: Spec, node: SimulatedNode) -> Spec:
    outside = f"::{node.roots.dev}/dri/by-path/"

    def moved(hook: Hook) -> Hook:
        args = (arg.replace(outside, "::/dev/dri/by-path/") for arg in hook.args)
        return replace(hook, args=tuple(args))

    return _each_device(
        spec,
        lambda device: replace(
            device,
            container_edits=replace(
                device.container_edits, hooks=tuple(map(moved, device.container_edits.hooks))
            ),
        ),
    )


def _with_capabilities_by_number(spec: Spec, node: SimulatedNode) -> Spec:
    """Change MIG devices only: the management device has the device nodes of the host."""
    instances = {
        f"/dev/nvidia-caps/nvidia-cap{line.split()[1]}"
        for line in (node.roots.proc / "driver/nvidia-caps/mig-minors").read_text().splitlines()
        if line.startswith("gpu")
    }

    def synthetic(found: DeviceNode) -> DeviceNode:
        if found.path not in instances:
            return found
        return replace(found, host_path="", permissions="")

    is_management = "/dev/nvidia-caps/nvidia-cap1" in _paths(spec)
    return spec if is_management else _each_node(spec, synthetic)


DEVIATIONS = (
    Deviation(
        "a device node has its type",
        "docs/reference/cdi.md §13.6",
        "a node with type and major can be injected even when it leaves the host in between",
        _with_types,
    ),
    Deviation(
        "a by-path link lies at its path in the container",
        "docs/reference/cdi.md §16.1",
        "the toolkit puts the dev root in front, where nothing in the container looks",
        _with_links_in_the_container,
    ),
    Deviation(
        "a MIG capability is given by its numbers, without a path of the host",
        "docs/reference/cdi.md §16.2",
        "the host often has no such node until somebody runs nvidia-modprobe; the kernel module's "
        "access files say which it would be",
        _with_capabilities_by_number,
    ),
)


def _paths(spec: Spec) -> set[str]:
    return {node.path for device in spec.devices for node in device.container_edits.device_nodes}


def _each_device(spec: Spec, change: Callable[[Device], Device]) -> Spec:
    return replace(spec, devices=tuple(map(change, spec.devices)))


def _each_node(spec: Spec, change: Callable[[DeviceNode], DeviceNode]) -> Spec:
    def changed(device: Device) -> Device:
        nodes = tuple(map(change, device.container_edits.device_nodes))
        return replace(device, container_edits=replace(device.container_edits, device_nodes=nodes))

    common = tuple(map(change, spec.container_edits.device_nodes))
    return replace(
        _each_device(spec, changed),
        container_edits=replace(spec.container_edits, device_nodes=common),
    )
