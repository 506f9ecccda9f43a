# SPDX-License-Identifier: Apache-2.0
"""Query NVML for the driver version, the GPUs and the MIG devices of this node.

This is the only module of the package that imports pynvml, which the extra `generate` installs.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.nvidia import driver_root as roots
from nvdra_cdi.nvidia.options import Gpu, MigDevice
from nvdra_cdi.rooted_files import RootedFiles

_LIBRARY = "libnvidia-ml.so.1"
_GRAPHICS = "+gfx"  # part of the profile, with which the name of a MIG device ends


class Session:
    """An NVML session. See `open_session`."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._nvml: Any = pynvml
        self._not_supported_errors = (
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_FunctionNotFound,
        )

    def driver_version(self) -> str:
        """The version of the driver, for example `580.95.05`."""
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def devices(self) -> list[Gpu | MigDevice]:
        """All GPUs by index, each followed by its MIG devices."""
        found: list[Gpu | MigDevice] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(
                uuid=self._nvml.nvmlDeviceGetUUID(handle),
                minor=self._nvml.nvmlDeviceGetMinorNumber(handle),
                pci_bus_id=self._nvml.nvmlDeviceGetPciInfo(handle).busId,
                index=index,
                has_mig_mode=self._has_mig_mode(handle),
                is_coherent=self._is_coherent(handle),
            )
            found.append(gpu)
            if gpu.has_mig_mode:
                found.extend(self._mig_devices(gpu, handle))
        return found

    def _has_mig_mode(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._not_supported_errors:
            return False
        return bool(current == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _is_coherent(self, handle: Any) -> bool:
        try:
            mode = self._nvml.nvmlDeviceGetAddressingMode(handle)
        except self._not_supported_errors:
            return False
        return bool(mode == self._nvml.NVML_DEVICE_ADDRESSING_MODE_ATS)

    def _mig_devices(self, parent: Gpu, handle: Any) -> Iterator[MigDevice]:
        for index in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                mig = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except self._nvml.NVMLError_NotFound:
                continue
            yield MigDevice(
                uuid=self._nvml.nvmlDeviceGetUUID(mig),
                parent=parent,
                gpu_instance=self._nvml.nvmlDeviceGetGpuInstanceId(mig),
                compute_instance=self._nvml.nvmlDeviceGetComputeInstanceId(mig),
                index=index,
                is_graphics=_GRAPHICS in self._nvml.nvmlDeviceGetName(mig),
            )


@contextmanager
def open_session(driver_root: str, search: tuple[str, ...] = ()) -> Iterator[Session]:
    """Open an NVML session with the driver below a root.

    Args:
        driver_root: The driver root.
        search: The directories in the driver root that contain NVML. Default: the linker's for the
            root `/`, else those of `nvidia.driver_root`.

    Raises:
        DiscoveryError: pynvml is not installed, or there is no driver, or NVML returns an error.
    """
    try:
        import pynvml
    except ImportError as error:
        raise DiscoveryError(
            "querying NVML requires the package nvidia-ml-py: pip install 'nvdra-cdi[generate]'"
        ) from error
    try:
        if driver_root != "/" or search:
            pynvml.nvmlLib = ctypes.CDLL(_library(driver_root, search))
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
        try:
            yield Session(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, OSError) as error:
        raise DiscoveryError(
            f"NVML of the driver below {driver_root}: {error}; set --driver-root if it is elsewhere"
        ) from error


def _library(driver_root: str, search: tuple[str, ...]) -> str:
    root = RootedFiles(driver_root)
    found = roots.find_libraries(root, _LIBRARY, roots.search_paths(root, search))
    if not found:
        where = ", ".join(search) or driver_root
        raise DiscoveryError(f"no {_LIBRARY} below {where}: is the driver installed there?")
    return driver_root.rstrip("/") + found[0]
