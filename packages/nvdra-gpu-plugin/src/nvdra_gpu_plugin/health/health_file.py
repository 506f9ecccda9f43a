# SPDX-License-Identifier: Apache-2.0
"""The files in the plugin's directory with what is known of the GPUs' health.

With them a restart of the plugin changes no taint. What was written before a reboot is not read,
because a reboot resets every GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_runtime.node import files
from nvdra_runtime.telemetry import logs
from pydantic import BaseModel

from nvdra_gpu_plugin.health.gpu_health import GpuHealth
from nvdra_gpu_plugin.health.vfio_health import VfioHealth

LOG = logs.logger(__name__)

K = TypeVar("K", bound=str)
H = TypeVar("H", bound=BaseModel)


class _Document(BaseModel, Generic[K, H]):
    boot_id: str
    gpus: dict[K, H]


class HealthFile(Generic[K, H]):
    """One of the files: the health of GPUs by a key of theirs."""

    def __init__(self, name: str, document: type[_Document[K, H]]) -> None:
        self._name = name
        self._document = document

    def read(self, plugin_dir: Path, boot_id: str) -> dict[K, H]:
        """What an earlier process of this boot has written.

        A file that cannot be read has nothing.
        """
        path = plugin_dir / self._name
        try:
            document = self._document.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.warning("Cannot read the health of GPUs", file=str(path), error=str(error))
            return {}
        return document.gpus if document.boot_id == boot_id else {}

    def write(self, plugin_dir: Path, boot_id: str, gpus: Mapping[K, H]) -> None:
        """Write it to the disk.

        Raises:
            OSError: It cannot be written.
        """
        document = self._document(boot_id=boot_id, gpus=dict(gpus))
        files.write_atomic(plugin_dir / self._name, document.model_dump_json().encode())


GPUS: Final = HealthFile("gpu-health.json", _Document[GpuUUID, GpuHealth])
"""Of the GPUs that NVML has, by UUID."""

VFIO_GPUS: Final = HealthFile("vfio-health.json", _Document[PciAddress, VfioHealth])
"""Of the GPUs that vfio has, by PCI address."""
