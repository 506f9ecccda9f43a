# SPDX-License-Identifier: Apache-2.0
"""The file in the plugin's directory with what is known of the GPUs' health.

With it a restart of the plugin changes no taint. What was written before a reboot is not read,
because a reboot resets every GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nvdra_api.ids import GpuUUID
from nvdra_runtime.node import files
from nvdra_runtime.telemetry import logs
from pydantic import BaseModel

from nvdra_gpu_plugin.health.gpu_health import GpuHealth

LOG = logs.logger(__name__)

_NAME: Final = "gpu-health.json"


class _Document(BaseModel):
    boot_id: str
    gpus: dict[GpuUUID, GpuHealth]


def read(plugin_dir: Path, boot_id: str) -> dict[GpuUUID, GpuHealth]:
    """What an earlier process of this boot has written. A file that cannot be read has nothing."""
    path = plugin_dir / _NAME
    try:
        document = _Document.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        LOG.warning("Cannot read the health of GPUs", file=str(path), error=str(error))
        return {}
    return document.gpus if document.boot_id == boot_id else {}


def write(plugin_dir: Path, boot_id: str, gpus: Mapping[GpuUUID, GpuHealth]) -> None:
    """Write it to the disk.

    Raises:
        OSError: It cannot be written.
    """
    document = _Document(boot_id=boot_id, gpus=dict(gpus))
    files.write_atomic(plugin_dir / _NAME, document.model_dump_json().encode())
