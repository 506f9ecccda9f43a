"""The one door to NVML: pynvml behind typed calls with errors of our own.

Every method is one NVML call and blocks: call it on a `process.worker.Worker`. What pynvml returns
oddly is put right here (spec/nvml-simulator.md §2): handles that are neither hashable nor equal to
themselves, errors that cannot be compared, lists for pairs.
What the numbers mean is for the caller (spec/gpu-devices.md §5.4).
"""

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

from nvdra_api.types.ids import GpuUUID, PciAddress

INIT_FLAG_NO_GPUS = 1
"""Initialise although no GPU is bound to the nvidia driver: all may be passed through."""

Observe = Callable[[str, float, bool], None]
"""Told of every call: C function, seconds, whether it was answered: that something
is not there to be asked for is an answer. Called on the calling thread."""


class Code(IntEnum):
    """The return codes that we tell apart (`nvmlReturn_t`)."""

    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    LIB_RM_VERSION_MISMATCH = 18


class NvmlError(Exception):
    """An NVML call failed.

    Attributes:
        code: `nvmlReturn_t`; compare with `Code`.
        function: The C function.
        device: UUID or index of the GPU it was about; "" for the library itself.
        text: NVML's own words.
    """

    def __init__(self, code: int, function: str, device: str, text: str) -> None:
        where = f" on {device}" if device else ""
        super().__init__(f"{function}{where}: {text} (NVML error {code})")
        self.code = code
        self.function = function
        self.device = device
        self.text = text

    @property
    def is_absent(self) -> bool:
        """The GPU, or this version of the driver, does not have what was asked for."""
        return self.code in (Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND)

    @property
    def is_of_driver(self) -> bool:
        """It is no board's fault: the kernel module went, or became another.

        A new session helps, once there is a driver again.
        """
        return self.code in (
            Code.UNINITIALIZED,
            Code.DRIVER_NOT_LOADED,
            Code.LIB_RM_VERSION_MISMATCH,
        )


@dataclass(frozen=True, slots=True)
class Handle:
    """A GPU as NVML knows it; equal to another of the same board.

    It stays valid for as long as the session: `nvmlDeviceGetHandleByUUID` can take seconds under
    load, so handles are held, not looked up.
    """

    uuid: GpuUUID
    pointer: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """What a GPU says of its NVLink fabric (`nvmlGpuFabricInfo_t`).

    Attributes:
        state: 0 not supported, 1 not started, 2 in progress, 3 completed.
        status: A return code, how joining ended; counts only once it is completed.
        cluster: UUID of the cluster; all zero with NVLink inside one node.
        clique: Number of the clique in the cluster.
    """

    state: int
    status: int
    cluster: UUID
    clique: int


class Nvml:
    """One long NVML session; safe to use from several threads at once."""

    def __init__(self, pynvml: ModuleType, observe: Observe) -> None:
        """Use `load`; this one takes an initialised module."""
        self._pynvml = pynvml
        self._observe = observe

    @classmethod
    def load(cls, library: Path, observe: Observe, renewal: int = 0) -> "Nvml":
        """Load the driver's library and open the session.

        Sessions of several libraries can live side by side: each has a pynvml of its own, and the
        library's symbols are nobody else's. One library has one session; close it before the next.

        Args:
            library: `libnvidia-ml.so.1` in the driver root, as `Host.find_library` returns it.
            observe: Told of every call.
            renewal: How many other files were loaded from this path before. glibc knows a library
                by the path it was given, also when another file is there by now; a path that is
                written in another way makes it look.

        Raises:
            NvmlError: The library cannot be loaded, or NVML cannot be initialised.
        """
        try:
            loaded = ctypes.CDLL(f"{library.parent}/{'./' * renewal}{library.name}")
        except OSError as error:
            raise NvmlError(Code.LIBRARY_NOT_FOUND, "dlopen", "", str(error)) from error
        nvml = cls(_pynvml(loaded), observe)
        nvml._call("nvmlInitWithFlags", "", INIT_FLAG_NO_GPUS)
        return nvml

    def close(self) -> None:
        """End the session; the library stays loaded."""
        self._call("nvmlShutdown", "")

    def driver_version(self) -> str:
        """Version of the driver, `580.95.05`."""
        return str(self._call("nvmlSystemGetDriverVersion", ""))

    def cuda_driver_version(self) -> int:
        """Newest CUDA that the driver serves: 1000 x major + 10 x minor."""
        return int(self._call("nvmlSystemGetCudaDriverVersion", ""))

    def count(self) -> int:
        """Number of GPUs bound to the driver; lost ones count."""
        return int(self._call("nvmlDeviceGetCount", ""))

    def handle_by_index(self, index: int) -> Handle:
        """The GPU at a place in PCI bus order, 0 … count - 1. Two calls: handle and UUID."""
        pointer = self._call("nvmlDeviceGetHandleByIndex", f"GPU at index {index}", index)
        uuid = self._call("nvmlDeviceGetUUID", f"GPU at index {index}", pointer)
        return Handle(GpuUUID(str(uuid)), pointer)

    def minor(self, gpu: Handle) -> int:
        """N of `/dev/nvidiaN`; need not be the index."""
        return int(self._ask("nvmlDeviceGetMinorNumber", gpu))

    def name(self, gpu: Handle) -> str:
        """Product name, `NVIDIA H100 80GB HBM3`."""
        return str(self._ask("nvmlDeviceGetName", gpu))

    def memory_total(self, gpu: Handle) -> int | None:
        """Bytes; None where the GPU has no memory of its own to report."""
        memory = self._ask_if_there("nvmlDeviceGetMemoryInfo", gpu)
        return None if memory is None else int(memory.total)

    def architecture(self, gpu: Handle) -> int:
        """Architecture id: 9 is Hopper."""
        return int(self._ask("nvmlDeviceGetArchitecture", gpu))

    def brand(self, gpu: Handle) -> int:
        """Brand id: 14 is Nvidia."""
        return int(self._ask("nvmlDeviceGetBrand", gpu))

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        """CUDA compute capability, major and minor."""
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability", gpu)
        return int(major), int(minor)

    def pci_bus_id(self, gpu: Handle) -> PciAddress:
        """Where the GPU is: lower case, the domain with four digits, eight if it needs them."""
        raw = self._ask("nvmlDeviceGetPciInfo", gpu).busId
        text = (raw.decode() if isinstance(raw, bytes) else str(raw)).lower()
        return PciAddress(text.removeprefix("0000") if text[8:9] == ":" else text)

    def is_mig_enabled(self, gpu: Handle) -> bool:
        """Whether the GPU is in MIG mode now; False also for one that cannot be cut."""
        modes = self._ask_if_there("nvmlDeviceGetMigMode", gpu)
        return modes is not None and bool(modes[0])  # the other one counts after a reset

    def addressing_mode(self, gpu: Handle) -> int | None:
        """0 none, 1 HMM, 2 ATS; None where the GPU or the driver does not say."""
        mode = self._ask_if_there("nvmlDeviceGetAddressingMode", gpu)
        return None if mode is None else int(mode)

    def fabric(self, gpu: Handle) -> FabricInfo | None:
        """How far the GPU has come into its NVLink fabric; None where GPU or driver know of none.

        The fields are those of every version of the structure; a driver that does not know the
        second one is asked for the first.
        """
        for function, made in (
            ("nvmlDeviceGetGpuFabricInfoV", self._pynvml.c_nvmlGpuFabricInfo_v2_t),
            ("nvmlDeviceGetGpuFabricInfo", self._pynvml.c_nvmlGpuFabricInfo_t),
        ):
            info = made()
            try:
                self._call(function, gpu.uuid, gpu.pointer, ctypes.byref(info))
            except NvmlError as error:
                if error.code == Code.FUNCTION_NOT_FOUND:
                    continue
                if error.is_absent:
                    return None
                raise
            cluster = UUID(bytes=bytes(info.clusterUuid))
            return FabricInfo(int(info.state), int(info.status), cluster, int(info.cliqueId))
        return None

    def prove_alive(self, gpu: Handle) -> None:
        """Return only if the GPU itself answers; the cheapest question that no cache answers.

        Memory use changes all the time, so NVML asks the device, unlike for its UUID or name. That
        a GPU has none to report is an answer, too.

        Raises:
            NvmlError: It does not; `NVML_ERROR_GPU_IS_LOST` when it has fallen off the bus.
        """
        self._ask_if_there("nvmlDeviceGetMemoryInfo", gpu)

    def _ask(self, function: str, gpu: Handle) -> Any:
        return self._call(function, gpu.uuid, gpu.pointer)

    def _ask_if_there(self, function: str, gpu: Handle) -> Any | None:
        try:
            return self._ask(function, gpu)
        except NvmlError as error:
            if error.is_absent:
                return None
            raise

    def _call(self, function: str, device: str, *arguments: Any) -> Any:
        """One call, timed. pynvml's error ends here: it can be neither hashed nor compared."""
        began = time.monotonic()
        failure: NvmlError | None = None
        try:
            result = getattr(self._pynvml, function)(*arguments)
        except self._pynvml.NVMLError as error:
            failure = NvmlError(int(error.value), function, device, str(error))
        is_answered = failure is None or failure.is_absent
        self._observe(function, time.monotonic() - began, is_answered)
        if failure is not None:
            raise failure
        return result


def _pynvml(library: ctypes.CDLL) -> ModuleType:
    """A pynvml that uses this library; it keeps the first one that it gets, and its functions.

    It would look for `libnvidia-ml.so.1` by that name only, which leads to no driver root.
    """
    known = getattr(sys.modules.get("pynvml"), "nvmlLib", None)
    if known is not None and known._handle != library._handle:
        del sys.modules["pynvml"]
    import pynvml  # 8,000 lines: read in the thread that needs them, beside the other imports

    pynvml.nvmlLib = library
    module: ModuleType = pynvml
    return module
