# SPDX-License-Identifier: Apache-2.0
"""Releases NVML on a node as the GPU plugin does, for other programs on that node."""

from datetime import UTC, datetime
from pathlib import Path

from nvdra_api import names
from nvdra_runtime.kubeletplugin import nvml_release
from nvdra_runtime.kubeletplugin.nvml_release import Origin, Release, ReleaseState

from nvdra_testing.node.rig import Rig


def release(rig: Rig, until: datetime | None = None) -> None:
    """Tell the node's programs that NVML is released, by the command `release`."""
    directory = _directory(rig)
    directory.mkdir(parents=True, exist_ok=True)
    begun = Release(origin=Origin.COMMAND, since=datetime.now(UTC), until=until)
    nvml_release.write(directory, ReleaseState(release=begun))


def resume(rig: Rig) -> None:
    """Tell them that it may be used again."""
    nvml_release.write(_directory(rig), ReleaseState())


def _directory(rig: Rig) -> Path:
    return rig.node.kubelet / "plugins" / names.GPU_DRIVER
