# SPDX-License-Identifier: Apache-2.0
"""Installs nvidia-cdi-hook where the host's container runtime can run it.

The hook runs on the host, where paths of this image do not exist.
"""

import filecmp
import os
from pathlib import Path
from typing import Final

from nvdra_runtime.node import files

BUNDLED: Final = Path("/usr/bin/nvidia-cdi-hook")
"""Its path in the image, and on a host with NVIDIA's package nvidia-container-toolkit-base."""

_NAME: Final = "nvidia-cdi-hook"


def install(configured: str, plugin_dir: Path, bundled: Path = BUNDLED) -> str:
    """The hook's path on the host: the configured one, or that of a copy in the plugin's directory.

    The directory has the same path in the container as on the host. This blocks while it reads the
    program, 7 MB.

    Raises:
        FileNotFoundError: No hook is configured, and none is bundled.
    """
    if configured:
        return configured
    if not bundled.is_file():
        raise FileNotFoundError(
            f"there is no {bundled} to install for the container runtime: run the plugin from its "
            "image, install nvidia-container-toolkit-base, or say where the hook is with "
            "--nvidia-cdi-hook-path"
        )
    installed = plugin_dir / _NAME
    if not installed.is_file() or not filecmp.cmp(bundled, installed, shallow=False):
        files.write_atomic(installed, bundled.read_bytes(), 0o755)
    return str(installed)


def restore(configured: str, plugin_dir: Path, bundled: Path = BUNDLED) -> None:
    """Install the hook again if it was removed.

    Raises:
        OSError: It cannot be installed, or cannot be run where it is.
    """
    if configured:
        return
    if not (plugin_dir / _NAME).is_file():
        plugin_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        install(configured, plugin_dir, bundled)
    if os.statvfs(plugin_dir).f_flag & os.ST_NOEXEC:
        raise PermissionError(
            f"{plugin_dir} is mounted noexec, so that no container with devices would start: "
            "mount the kubelet's directory without noexec, or copy nvidia-cdi-hook to another "
            "directory of the nodes and set global.nvidiaCDIHookPath (--nvidia-cdi-hook-path)"
        )
