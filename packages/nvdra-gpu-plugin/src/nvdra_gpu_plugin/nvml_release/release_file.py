"""The file in the plugin's directory that tells the next process that NVML is released.

Any process on the node may ask `is_released` before it opens NVML.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

from nvdra_runtime.node import files
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.nvml_release.release_state import ReleaseState

LOG = logs.logger(__name__)

_NAME: Final = "nvml-release.json"


def read(plugin_dir: Path) -> ReleaseState:
    """What the file says. If it is missing or cannot be read, nothing is released."""
    path = plugin_dir / _NAME
    try:
        return ReleaseState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return ReleaseState()
    except (OSError, ValueError) as error:
        LOG.warning("Cannot read whether NVML is released", file=str(path), error=str(error))
        return ReleaseState()


def is_released(plugin_dir: Path, now: datetime) -> bool:
    """Whether NVML must not be used on this node now."""
    release = read(plugin_dir).release
    return release is not None and not release.is_over(now)


def write(plugin_dir: Path, state: ReleaseState) -> None:
    """Write the state to the disk; without anything to tell there is no file.

    Raises:
        OSError: It cannot be written.
    """
    path = plugin_dir / _NAME
    if state == ReleaseState():
        path.unlink(missing_ok=True)
        files.fsync_directory(plugin_dir)
        return
    files.write_atomic(path, state.model_dump_json().encode())
