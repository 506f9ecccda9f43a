# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a GPU, one context manager for each: it is well again after the block.

A fault concerns one GPU of a node, by its index; others of the node may have theirs meanwhile.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

from nvdra_testing.node.plugin import Node

CALLS: Final = ("nvmlDevice*", "nvmlGpuInstance*", "nvmlComputeInstance*")
"""All functions of NVML that concern a GPU, or an instance of it."""

CLIENT_PID: Final = "4711"
"""Of a process of the claim that has the GPU's devices."""


class Simulated(Protocol):
    """A simulated node: of a rig, or of a lab."""

    def simctl(self, *command: str) -> str:
        """Change its hardware, and return what nvdra-simctl says."""
        ...


GpuFault = Callable[[Node, int], AbstractContextManager[None]]
"""Called with the node and the index of the GPU."""


@contextmanager
def rules(node: Simulated, gpu: int, *functions: str, **how: str) -> Iterator[list[int]]:
    """Fault rules for functions of one GPU; the value has their ids.

    Args:
        node: The node.
        gpu: The GPU's index.
        functions: Globs.
        how: Options of `nvdra-simctl fault add`: `result`, `delay_ms`, `after_calls`.
    """
    options = [f"--{name.replace('_', '-')}={value}" for name, value in how.items()]
    command = ("fault", "add", "--json", f"--gpu={gpu}", *options)
    ids = [json.loads(node.simctl(*command, function))["id"] for function in functions]
    try:
        yield ids
    finally:
        for rule in ids:
            node.simctl("fault", "rm", str(rule))


def hits(node: Simulated, rule: int) -> int:
    """How often a rule has applied. A call that it blocks counts."""
    listed = json.loads(node.simctl("fault", "list", "--json"))
    return next(int(each["hits"]) for each in listed if each["id"] == rule)


@contextmanager
def fallen_off_the_bus(node: Simulated, gpu: int) -> Iterator[None]:
    """Each call answers that the GPU is lost (15), and the driver reports Xid 79."""
    node.simctl("gpu", "lose", str(gpu), "--xid", "79")
    try:
        yield
    finally:
        node.simctl("gpu", "restore", str(gpu))


@contextmanager
def unplugged(node: Node, gpu: int) -> Iterator[None]:
    """The GPU is not on the node: neither NVML nor the driver's files have it."""
    shown = json.loads(node.simctl("show", "--json"))["gpus"][gpu]
    listed = node.roots.proc / "driver/nvidia/gpus" / shown["bus_id"]
    elsewhere = node.kubelet.parent / f"unplugged-{gpu}"
    node.simctl("gpu", "unplug", str(gpu))
    listed.rename(elsewhere)
    try:
        yield
    finally:
        node.simctl("gpu", "plug", str(gpu))
        if elsewhere.exists() and not listed.exists():  # a boot lists what is there
            elsewhere.rename(listed)


@contextmanager
def answering(result: str, node: Simulated, gpu: int) -> Iterator[None]:
    """Each call answers with this error."""
    with rules(node, gpu, *CALLS, result=result):
        yield


@contextmanager
def hanging(node: Simulated, gpu: int) -> Iterator[None]:
    """No call returns."""
    with rules(node, gpu, *CALLS, delay_ms="-1"):
        yield


@contextmanager
def monitored(node: Simulated, gpu: int) -> Iterator[None]:
    """A program outside of pods has the GPU open: no MIG device of it goes, no mode changes.

    It computes nothing, so that no list of processes names it.
    """
    with (
        rules(node, gpu, "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy", result="IN_USE"),
        rules(node, gpu, "nvmlDeviceSetMigMode", activation_status="IN_USE"),
    ):
        yield


@contextmanager
def used_by_the_claim(node: Simulated, gpu: int) -> Iterator[None]:
    """A process of a pod computes on what there is of the GPU, until the block is left."""
    made = json.loads(node.simctl("mig", "list", "--instances", "--json"))
    instances = [str(each["gpu_instance"]) for each in made if each["gpu"] == gpu]
    for instance in instances:
        node.simctl("proc", "add", str(gpu), CLIENT_PID, "--gi", instance)
    if not instances:
        node.simctl("proc", "add", str(gpu), CLIENT_PID)
    try:
        yield
    finally:
        # One that was let in while its instance was being destroyed has gone with that.
        if any(str(each["pid"]) == CLIENT_PID for each in _processes(node, gpu)):
            node.simctl("proc", "rm", str(gpu), CLIENT_PID)


def _processes(node: Simulated, gpu: int) -> list[dict[str, Any]]:
    listed = json.loads(node.simctl("proc", "list", "--json"))
    return [each for each in listed if each["gpu"] == gpu]


USED_BY_THE_CLAIM: Final = "in use by the claim"
CALL_FAULTS: Final[Mapping[str, Callable[[Simulated, int], AbstractContextManager[None]]]] = (
    MappingProxyType(
        {
            "lost": fallen_off_the_bus,
            "reset required": partial(answering, "RESET_REQUIRED"),
            "unknown errors": partial(answering, "UNKNOWN"),
            "not supported": partial(answering, "NOT_SUPPORTED"),
            "no permission": partial(answering, "NO_PERMISSION"),
            "hangs": hanging,
            "monitored": monitored,
            USED_BY_THE_CLAIM: used_by_the_claim,
        }
    )
)
"""What is wrong with the calls on a GPU, by a name for tests."""
FAULTS: Final[Mapping[str, GpuFault]] = MappingProxyType({**CALL_FAULTS, "absent": unplugged})
"""Every kind of fault."""
