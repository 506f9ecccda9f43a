# SPDX-License-Identifier: Apache-2.0
"""What claims change of a GPU: its GPU instances, MIG mode, time slice and compute mode.

Read with the programs of an administrator, not with the plugin's own code.
"""

import json
import re

from nvdra_sim.state_file import state

from nvdra_testing.node.plugin import Node


def gpu_instances(node: Node) -> list[tuple[int, str, int]]:
    """GPU, profile and first slice of every GPU instance, with compute instances or without."""
    found = json.loads(node.simctl("mig", "list", "--instances", "--json"))
    return sorted((int(each["gpu"]), str(each["profile"]), int(each["start"])) for each in found)


def is_in_mig_mode(node: Node, gpu: int = 0) -> bool:
    """Whether MIG mode is on."""
    return _queried(node, gpu, "mig.mode.current") == "Enabled"


def time_slice(node: Node, gpu: int) -> str:
    """The time slice: Default, Short, Medium or Long."""
    listed = node.nvidia_smi("compute-policy", "-i", str(gpu), "--list")
    (found,) = re.findall(r"Default|Short|Medium|Long", listed)
    return str(found)


def is_exclusive(node: Node, gpu: int) -> bool:
    """Whether one process alone may compute on a GPU."""
    return _queried(node, gpu, "compute_mode") == "Exclusive_Process"


def keep_settings(node: Node) -> None:
    """Switch persistence mode on for all GPUs, as nvidia-persistenced does."""
    hardware = state.load(node.state_path)
    with hardware.transaction() as now:
        for gpu in hardware.description().gpus:
            now.gpus[gpu.index].persistence = 1


def _queried(node: Node, gpu: int, field: str) -> str:
    arguments = f"--query-gpu={field}", "--format=csv,noheader"
    return node.nvidia_smi("-i", str(gpu), *arguments).strip()
