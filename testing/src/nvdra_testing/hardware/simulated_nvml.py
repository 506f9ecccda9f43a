# SPDX-License-Identifier: Apache-2.0
"""NVML sessions without a library, for unit tests: what one GPU answers is a function.

Component tests use the simulated library below pynvml. Here a test decides when a call returns.
"""

from collections.abc import Callable
from pathlib import Path

from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.driver.installation import DriverInstallation, FileID
from nvdra_gpu_plugin.driver.nvml_sessions import DriverVersions, NvmlSession
from nvdra_gpu_plugin.hardware import probe_state
from nvdra_gpu_plugin.hardware.discovery import DiscoveredGpu, Discovery
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import Answer, Moment
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, Nvml
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker


class AnsweringNvml(Nvml):
    """The library of one session.

    Attributes:
        is_closed: Whether the session was closed.
        asked: The UUIDs of the GPUs that were asked whether they work, in order.
    """

    def __init__(self, answer: Callable[[str], None] = lambda _: None) -> None:
        self.is_closed = False
        self.asked: list[str] = []
        self._answer = answer

    def close(self) -> None:
        """Note that the session is closed."""
        self.is_closed = True

    def verify_alive(self, gpu: DeviceHandle) -> None:
        """Answer for a GPU as the test says; called on the GPU's thread."""
        self.asked.append(gpu.uuid)
        self._answer(gpu.uuid)

    def is_mig_enabled(self, gpu: DeviceHandle) -> bool:
        """No GPU is in MIG mode."""
        del gpu
        return False


def session(nvml: Nvml, *gpus: Gpu, version: str = "580.95.05") -> NvmlSession:
    """An open session with these GPUs."""
    installation = DriverInstallation(
        Path(f"/usr/lib/libnvidia-ml.so.{version}"),
        FileID(0, 0, 0, 0),
        version,
        tuple(gpu.pci for gpu in gpus),
    )
    return NvmlSession(nvml, installation, DriverVersions(version, "13.0"), len(gpus))


def described_probe(
    opened: NvmlSession,
    index: int,
    gpu: Gpu,
    clock: Clock,
    worker: Worker,
    handle: DeviceHandle | None = None,
) -> GpuProbe:
    """The probe of a GPU that has described itself."""
    probe = GpuProbe(opened, index, gpu.pci, gpu, worker, Discovery(Host()), clock)
    found = DiscoveredGpu(gpu, handle or DeviceHandle(gpu.uuid, None), {})
    now = Moment(clock.monotonic(), clock.now())
    probe.state = probe_state.answered(probe.state, Answer(found), now)
    return probe
