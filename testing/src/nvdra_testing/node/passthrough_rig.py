# SPDX-License-Identifier: Apache-2.0
"""A node whose GPUs can be passed to virtual machines, with a plugin's process on it.

Its sysfs is served: drivers are changed by writes to its files, as on a real kernel.
"""

import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvdra_sim.native import programs
from nvdra_sim.testing import passthrough_fixtures
from nvdra_sim.testing.passthrough_fixtures import ServedNode

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node.plugin import Node
from nvdra_testing.node.rig import Rig

GATE = "PassthroughSupport=true"
CONTAINER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def flags_of(served: ServedNode) -> tuple[str, ...]:
    """The flags that a plugin with the gate needs on a node."""
    return (f"--passthrough-modules-root={served.modules}", "--passthrough-proc-root=/proc")


def environ_of(served: ServedNode) -> dict[str, str]:
    """The variables with which a plugin finds the node's modprobe."""
    directory = programs.kmod("modprobe").parent
    return {"PATH": f"{directory}:{CONTAINER_PATH}", "NVDRA_SIM_SYS": str(served.sys)}


@dataclass
class PassthroughRig(Rig):
    """A rig with a served sysfs.

    Attributes:
        served: The node's hardware.
        gates: The feature gates that `start_passing` sets.
    """

    served: ServedNode = field(kw_only=True)
    gates: Sequence[str] = (GATE,)

    async def start_passing(self, *flags: str) -> None:
        """Start the plugin with the gate, and wait until it has published its slices."""
        await self.start(*self.flags(), *flags, environ=self.environ)

    def flags(self) -> tuple[str, ...]:
        """The flags of a plugin that passes GPUs to virtual machines."""
        return (f"--feature-gates={','.join(self.gates)}", *flags_of(self.served))

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which it finds the node's modprobe."""
        return environ_of(self.served)

    async def reboot(self) -> None:
        """Cut the power of the node, whose CDI directory is on a tmpfs, and boot it again.

        Drivers are as the kernel binds them; modules of vfio are loaded when they are needed. The
        plugin is not started. Programs that the test has started on the node must have ended.
        """
        self.process.stop(signal.SIGKILL)
        self.node.simctl("reboot", f"--proc-root={self.node.roots.proc}")
        shutil.rmtree(self.node.cdi, ignore_errors=True)
        await self.kubelet.restart()

    def driver_of(self, index: int) -> str | None:
        """The driver that a GPU has."""
        link = self.served.device(index) / "driver"
        return link.readlink().name if link.is_symlink() else None

    def group_of(self, index: int) -> int:
        """The number of its IOMMU group."""
        return int((self.served.device(index) / "iommu_group").readlink().name)

    def override_of(self, index: int) -> str:
        """Its `driver_override`."""
        return (self.served.device(index) / "driver_override").read_text().strip()


@contextmanager
def served_node(
    directory: Path, name: str, profile: str, **sections: Any
) -> Iterator[tuple[Node, ServedNode]]:
    """Simulated hardware below `directory`, whose sysfs is served, for the block.

    The path of `directory` must be short. `sections` are those of a node file.
    """
    hardware = directory / "hw"
    hardware.mkdir()
    with passthrough_fixtures.served(profile, hardware, **sections) as served:
        roots = replace(served.roots, sys=served.sys)
        yield Node(name, roots, directory / "k", directory / "cdi"), served


@asynccontextmanager
async def open_rig(
    server: ApiServer, name: str, profile: str = "t4", **sections: Any
) -> AsyncIterator[PassthroughRig]:
    """A simulated node with a kubelet, until the block ends. The plugin is not started.

    Args:
        server: The API server.
        name: The node's name.
        profile: Its hardware.
        **sections: Those of the node's file.
    """
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory, ExitStack() as stack:
        node, served = stack.enter_context(served_node(Path(directory), name, profile, **sections))
        plugin.create_node_object(server, name)
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            yield PassthroughRig(server, node, kubelet, stack, served=served)
