# SPDX-License-Identifier: Apache-2.0
"""Who has GPUs of a node open in the property test: virtual machines, and programs beside pods."""

import json
import os
import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field

from nvdra_testing import yaml_documents
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox

NATIVE = "nvidia"
_WHOLE_GPU = re.compile(r"(?P<gpu>gpu-\d+)-[0-9a-f]{10}")


@dataclass
class GpuUsers:
    """The users of one node's GPUs, by device name `gpu-<index>`.

    Attributes:
        sandbox: The node, whose sysfs is served.
        machines: The GPUs that virtual machines have.
        programs: The GPUs whose device nodes are open: in this process, as it has no driver.
    """

    sandbox: PluginSandbox
    machines: dict[str, ExitStack] = field(default_factory=dict)
    programs: dict[str, int] = field(default_factory=dict)

    def start_machine(self, gpu: str) -> None:
        """Start a virtual machine with a GPU that is on vfio."""
        served = self.sandbox.served
        assert served is not None
        device = served.device(_index(gpu))
        group = (device / "iommu_group").readlink().name
        pipe = subprocess.PIPE
        command = [*served.vmm, "device", group, device.name]
        stack = ExitStack()
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe))
        assert process.stdout is not None
        answer = process.stdout.readline()
        assert b'"failed": null' in answer, f"no virtual machine can open {gpu}: {answer!r}"
        stack.callback(process.communicate)
        self.machines[gpu] = stack

    def end_machine(self, gpu: str) -> None:
        """End a virtual machine."""
        self.machines.pop(gpu).close()

    def open_node(self, gpu: str) -> bool:
        """Open a GPU's device node as a program on the node does. False if it has none now."""
        node = self.sandbox.node.roots.dev / f"nvidia{self._minor(gpu)}"
        if self.driver(gpu) != NATIVE or not node.exists():
            return False
        self.programs[gpu] = os.open(node, os.O_PATH)
        return True

    def close_node(self, gpu: str) -> None:
        """Close it."""
        os.close(self.programs.pop(gpu))

    def end_all(self) -> None:
        """End them all, as with a reboot."""
        for gpu in [*self.machines]:
            self.end_machine(gpu)
        for gpu in [*self.programs]:
            self.close_node(gpu)

    def find_wrong_name(self) -> str:
        """A CDI name of a whole GPU that gives a container another one; empty if there is none."""
        for path in self.sandbox.node.cdi.glob("*-device_*.yaml"):
            for device in yaml_documents.load(path.read_text())["devices"]:
                found = _WHOLE_GPU.fullmatch(device["name"])
                nodes = [node["path"] for node in device["containerEdits"]["deviceNodes"]]
                if found and f"/dev/nvidia{self._minor(found['gpu'])}" not in nodes:
                    return f"{device['name']} has {nodes}"
        return ""

    def _minor(self, gpu: str) -> int:
        """The GPU's minor number, which may be another one after each bind."""
        shown = json.loads(self.sandbox.node.simctl("show", "--json"))["gpus"]
        return int(next(each["minor"] for each in shown if each["gpu"] == _index(gpu)))

    def driver(self, gpu: str) -> str | None:
        """The driver that has a GPU."""
        assert self.sandbox.served is not None
        link = self.sandbox.served.device(_index(gpu)) / "driver"
        return link.readlink().name if link.is_symlink() else None

    def overrides(self) -> set[str]:
        """The different values of `driver_override` of the node's GPUs."""
        served = self.sandbox.served
        assert served is not None
        return {
            (served.device(gpu.index) / "driver_override").read_text().strip()
            for gpu in served.description.gpus
        }


def _index(gpu: str) -> int:
    return int(gpu.removeprefix("gpu-"))
