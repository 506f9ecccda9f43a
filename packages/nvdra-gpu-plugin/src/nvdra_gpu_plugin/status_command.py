# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-gpu-plugin status`."""

from collections.abc import Sequence

from nvdra_runtime.kubeletplugin import status_command
from nvdra_runtime.kubeletplugin.status_command import Column

from nvdra_gpu_plugin.__about__ import __version__

COLUMNS = (Column("PCI", "pci"), Column("UUID", "uuid"), Column("PRODUCT", "product"))


def main(argv: Sequence[str]) -> int:
    """Print the status; the exit code is 1 when the plugin cannot be asked."""
    return status_command.main(argv, "nvdra-gpu-plugin", __version__, COLUMNS)
