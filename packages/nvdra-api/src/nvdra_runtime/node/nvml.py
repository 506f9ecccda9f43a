# SPDX-License-Identifier: Apache-2.0
"""NVML: typed calls with our own errors. Only this module imports pynvml.

Every method makes one NVML call and blocks, so call it on a `process.worker.Worker`. This module
corrects what pynvml returns (docs/reference/nvml-simulator.md §2): handles that are neither
hashable nor equal to themselves, errors that cannot be compared, lists in place of pairs. The
callers interpret the values (docs/reference/gpu-devices.md, "Return codes, enumerations and
names").
"""

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple
from uuid import UUID

from nvdra_api.ids import GpuUUID, PciAddress

from nvdra_runtime.extras import require

require(__name__, "node", "pynvml")

INIT_FLAG_NO_GPUS = 1
"""Initialize NVML even if no GPU is bound to the nvidia driver: all may be passed through."""

CallObserver = Callable[[str, float, bool], None]
"""Called after every call, on the calling thread: C function, seconds, whether it was answered.
"Not supported" is an answer."""


class ReturnCode(IntEnum):
    """The return codes that our code distinguishes (`nvmlReturn_t`)."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


class NvmlError(Exception):
    """An NVML call failed.

    Attributes:
        code: `nvmlReturn_t`; compare with `ReturnCode`.
        function: The C function.
        device: UUID or index of the GPU; "" for a call without a GPU.
        text: NVML's error message.
    """

    def __init__(self, code: int, function: str, device: str, text: str) -> None:
        where = f" on {device}" if device else ""
        super().__init__(f"{function}{where}: {text} (NVML error {code})")
        self.code = code
        self.function = function
        self.device = device
        self.text = text

    @property
    def is_unsupported(self) -> bool:
        """Whether the GPU or this version of the driver does not support the call."""
        return self.code in (ReturnCode.NOT_SUPPORTED, ReturnCode.FUNCTION_NOT_FOUND)

    @property
    def is_driver_error(self) -> bool:
        """Whether the kernel module was unloaded or replaced, rather than a GPU failing.

        A new session works once a driver is loaded again.
        """
        return self.code in (
            ReturnCode.UNINITIALIZED,
            ReturnCode.DRIVER_NOT_LOADED,
            ReturnCode.LIB_RM_VERSION_MISMATCH,
        )


@dataclass(frozen=True, slots=True)
class DeviceHandle:
    """NVML's handle of a GPU. Two handles of the same GPU are equal.

    It is valid as long as the session. `nvmlDeviceGetHandleByUUID` can take seconds under load, so
    callers keep their handles.
    """

    uuid: GpuUUID
    pointer: Any = field(compare=False, repr=False)


_FABRIC_COMPLETED: Final = 3

_CONFIGURATIONS: Final = (0, 1, 4)
"""Four bits of the health mask: it is not known whether the configuration is correct, it is, and
there is no partition."""


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """The NVLink fabric of a GPU (`nvmlGpuFabricInfo_t`).

    Attributes:
        state: 0 not supported, 1 not started, 2 in progress, 3 completed.
        status: The return code of the registration; valid only if it is completed.
        cluster: UUID of the cluster; all zero if NVLink connects one node only.
        clique: Number of the clique in the cluster.
        health_mask: Two bits for each thing that can be wrong: 0 it is not known, 1 wrong, 2 not.
            Bits 8 to 11 say what is wrong with the configuration.
    """

    state: int
    status: int
    cluster: UUID
    clique: int
    health_mask: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether the GPU could not join its fabric."""
        return self.state == _FABRIC_COMPLETED and self.status != 0

    @property
    def is_bandwidth_degraded(self) -> bool:
        """Whether some of its NVLinks do not work."""
        return self.health_mask & 3 == 1

    @property
    def is_route_unhealthy(self) -> bool:
        """Whether a route to other GPUs does not work.

        Newer drivers have a second value, 3, for one that needs a reset.
        """
        return self.health_mask >> 4 & 3 in (1, 3)

    @property
    def is_access_timeout(self) -> bool:
        """Whether the fabric recovers at present from accesses that were not answered."""
        return self.health_mask >> 6 & 3 == 1

    @property
    def is_configured_incorrectly(self) -> bool:
        """Whether the GPU does not fit the fabric: another system or chassis, its place, firmware.

        A GPU that has no partition yet may be waiting for it.
        """
        return self.health_mask >> 8 & 15 not in _CONFIGURATIONS


class PowerLimits(NamedTuple):
    """How much power a GPU may draw: now, and by default."""

    current: int
    default: int


class Nvml:
    """An NVML session. Safe to use from several threads at once."""

    def __init__(self, pynvml: ModuleType, observe: CallObserver) -> None:
        """Use `load` instead; this constructor takes an initialized module."""
        self._pynvml = pynvml
        self._observe = observe

    @classmethod
    def load(cls, library: Path, observe: CallObserver, reload_count: int = 0) -> "Nvml":
        """Load the driver's library and open the session.

        Sessions of several libraries can exist side by side: each has its own pynvml module and
        symbols. A library has one session at a time; close it before the next one.

        Args:
            library: `libnvidia-ml.so.1` in the driver root, from `Host.find_library`.
            observe: Called after every call.
            reload_count: How many other files were loaded from this path before. glibc identifies a
                library by the path that it was loaded from, even if the file has been replaced; a
                different spelling of the path makes it load the new file.

        Raises:
            NvmlError: The library cannot be loaded, or NVML cannot be initialised.
        """
        try:
            loaded = ctypes.CDLL(f"{library.parent}/{'./' * reload_count}{library.name}")
        except OSError as error:
            raise NvmlError(ReturnCode.LIBRARY_NOT_FOUND, "dlopen", "", str(error)) from error
        nvml = cls(_pynvml(loaded), observe)
        nvml.call("nvmlInitWithFlags", "", INIT_FLAG_NO_GPUS)
        return nvml

    def close(self) -> None:
        """Close the session. The library stays loaded."""
        self.call("nvmlShutdown", "")

    def driver_version(self) -> str:
        """Version of the driver, such as `580.95.05`."""
        return str(self.call("nvmlSystemGetDriverVersion", ""))

    def cuda_driver_version(self) -> int:
        """Newest CUDA version that the driver supports: 1000 x major + 10 x minor."""
        return int(self.call("nvmlSystemGetCudaDriverVersion", ""))

    def device_count(self) -> int:
        """Number of GPUs bound to the driver, including lost ones."""
        return int(self.call("nvmlDeviceGetCount", ""))

    def excluded_gpus(self) -> tuple[PciAddress, ...]:
        """GPUs that the kernel module lists and leaves alone (its parameter `NVreg_ExcludedGpus`).

        Empty if this version of the driver cannot tell.
        """
        try:
            count = int(self.call("nvmlGetExcludedDeviceCount", ""))
        except NvmlError as error:
            if error.is_unsupported:
                return ()
            raise
        infos = [self.call("nvmlGetExcludedDeviceInfoByIndex", "", n) for n in range(count)]
        return tuple(_pci_address(info.pci.busId) for info in infos)

    def handle_by_index(self, index: int) -> DeviceHandle:
        """The GPU at an index in PCI bus order, 0 … count - 1. Makes two calls: handle and UUID."""
        pointer = self.call("nvmlDeviceGetHandleByIndex", f"GPU at index {index}", index)
        uuid = self.call("nvmlDeviceGetUUID", f"GPU at index {index}", pointer)
        return DeviceHandle(GpuUUID(str(uuid)), pointer)

    def minor_number(self, gpu: DeviceHandle) -> int:
        """N of `/dev/nvidiaN`. It may differ from the index."""
        return int(self._query("nvmlDeviceGetMinorNumber", gpu))

    def name(self, gpu: DeviceHandle) -> str:
        """Product name, such as `NVIDIA H100 80GB HBM3`."""
        return str(self._query("nvmlDeviceGetName", gpu))

    def memory_total_bytes(self, gpu: DeviceHandle) -> int | None:
        """Memory in bytes; None if the GPU reports none."""
        memory = self._query_if_supported("nvmlDeviceGetMemoryInfo", gpu)
        return None if memory is None else int(memory.total)

    def architecture(self, gpu: DeviceHandle) -> int:
        """Architecture ID; 9 is Hopper."""
        return int(self._query("nvmlDeviceGetArchitecture", gpu))

    def brand(self, gpu: DeviceHandle) -> int:
        """Brand ID; 14 is Nvidia."""
        return int(self._query("nvmlDeviceGetBrand", gpu))

    def compute_capability(self, gpu: DeviceHandle) -> tuple[int, int]:
        """CUDA compute capability, major and minor."""
        major, minor = self._query("nvmlDeviceGetCudaComputeCapability", gpu)
        return int(major), int(minor)

    def pci_bus_id(self, gpu: DeviceHandle) -> PciAddress:
        """PCI address in lower case. The domain has four digits, or eight if necessary."""
        return _pci_address(self._query("nvmlDeviceGetPciInfo", gpu).busId)

    def is_mig_enabled(self, gpu: DeviceHandle) -> bool:
        """Whether the GPU is in MIG mode now; False if it does not support MIG."""
        modes = self._query_if_supported("nvmlDeviceGetMigMode", gpu)
        return modes is not None and bool(modes[0])  # the second one is the mode after a reset

    def is_persistent(self, gpu: DeviceHandle) -> bool | None:
        """Whether the GPU keeps running without clients; None if the driver has no such mode."""
        mode = self._query_if_supported("nvmlDeviceGetPersistenceMode", gpu)
        return None if mode is None else bool(mode)

    def compute_mode(self, gpu: DeviceHandle) -> int:
        """0 default, 2 prohibited, 3 exclusive process."""
        return int(self._query_if_supported("nvmlDeviceGetComputeMode", gpu) or 0)

    def set_compute_mode(self, gpu: DeviceHandle, mode: int) -> None:
        """Set who may compute on the GPU (`nvmlComputeMode_t`), until the driver is unloaded."""
        self.call("nvmlDeviceSetComputeMode", gpu.uuid, gpu.pointer, mode)

    def power_limits_mw(self, gpu: DeviceHandle) -> PowerLimits | None:
        """The power limits in milliwatts; None if the GPU has none."""
        current = self._query_if_supported("nvmlDeviceGetPowerManagementLimit", gpu)
        default = self._query_if_supported("nvmlDeviceGetPowerManagementDefaultLimit", gpu)
        if current is None or default is None:
            return None
        return PowerLimits(int(current), int(default))

    def addressing_mode(self, gpu: DeviceHandle) -> int | None:
        """0 none, 1 HMM, 2 ATS; None if the GPU or the driver does not report it."""
        mode = self._query_if_supported("nvmlDeviceGetAddressingMode", gpu)
        return None if mode is None else int(mode)

    def fabric_info(self, gpu: DeviceHandle) -> FabricInfo | None:
        """The state of the GPU's NVLink fabric; None if GPU or driver support none.

        The fields exist in every version of the structure. A driver without version 2 is called
        with version 1.
        """
        for function, made in (
            ("nvmlDeviceGetGpuFabricInfoV", self._pynvml.c_nvmlGpuFabricInfo_v2_t),
            ("nvmlDeviceGetGpuFabricInfo", self._pynvml.c_nvmlGpuFabricInfo_t),
        ):
            info = made()
            try:
                self.call(function, gpu.uuid, gpu.pointer, ctypes.byref(info))
            except NvmlError as error:
                if error.code == ReturnCode.FUNCTION_NOT_FOUND:
                    continue
                if error.is_unsupported:
                    return None
                raise
            cluster = UUID(bytes=bytes(info.clusterUuid))
            mask = int(getattr(info, "healthMask", 0))
            return FabricInfo(int(info.state), int(info.status), cluster, int(info.cliqueId), mask)
        return None

    def verify_alive(self, gpu: DeviceHandle) -> None:
        """Check that the GPU itself answers, with the cheapest call that NVML does not cache.

        Memory use changes all the time, so NVML asks the device, unlike for its UUID or name. "Not
        supported" is an answer, too.

        Raises:
            NvmlError: The GPU does not answer: `NVML_ERROR_GPU_IS_LOST` if it has fallen off the
                bus.
        """
        self._query_if_supported("nvmlDeviceGetMemoryInfo", gpu)

    def _query(self, function: str, gpu: DeviceHandle) -> Any:
        return self.call(function, gpu.uuid, gpu.pointer)

    def _query_if_supported(self, function: str, gpu: DeviceHandle) -> Any | None:
        try:
            return self._query(function, gpu)
        except NvmlError as error:
            if error.is_unsupported:
                return None
            raise

    def call(self, function: str, device: str, *arguments: Any, is_observed: bool = True) -> Any:
        """Make one call of pynvml and time it, for the modules of this package.

        Args:
            function: The function of pynvml.
            device: What errors name: UUID or index of the GPU, or "".
            arguments: Its arguments.
            is_observed: False for a call that waits by design.

        Raises:
            NvmlError: It fails, or returns a text that is none. pynvml's own errors, which cannot
                be compared, are translated; that for a function that the driver lacks is of another
                class where the function has versions.
        """
        started = time.monotonic()
        failure: NvmlError | None = None
        try:
            result = getattr(self._pynvml, function)(*arguments)
        except self._pynvml.NVMLError as error:
            failure = NvmlError(int(error.value), function, device, str(error))
        except self._pynvml.NVMLLibraryMismatchError:
            text = "the driver is too old for this function"
            failure = NvmlError(ReturnCode.FUNCTION_NOT_FOUND, function, device, text)
        except UnicodeDecodeError as error:  # of a library that has overwritten its memory
            text = f"it returned a text that is not UTF-8: {error.object!r}"
            failure = NvmlError(ReturnCode.UNKNOWN, function, device, text)
        is_answered = failure is None or failure.is_unsupported
        if is_observed:
            self._observe(function, time.monotonic() - started, is_answered)
        if failure is not None:
            raise failure
        return result


def _pci_address(bus_id: bytes | str) -> PciAddress:
    text = (bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)).lower()
    return PciAddress(text.removeprefix("0000") if text[8:9] == ":" else text)


def _pynvml(library: ctypes.CDLL) -> ModuleType:
    """A pynvml module that uses this library.

    pynvml would load `libnvidia-ml.so.1` by its name, which is not in the driver root, and it keeps
    the first library that it gets. So each library has its own module.
    """
    known = getattr(sys.modules.get("pynvml"), "nvmlLib", None)
    if known is not None and known._handle != library._handle:
        del sys.modules["pynvml"]
    import pynvml  # 8,000 lines: imported on the worker thread, in parallel with other imports

    pynvml.nvmlLib = library
    module: ModuleType = pynvml
    return module
