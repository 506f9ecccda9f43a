"""`nvdra-gpu-plugin status`: the plugins' common command, with what the table tells of a GPU."""

from collections.abc import Sequence

from nvdra_api.runtime.plugin import status
from nvdra_api.runtime.plugin.status import Column

from nvdra_gpu_plugin.__about__ import __version__

COLUMNS = (Column("PCI", "pci"), Column("UUID", "uuid"), Column("PRODUCT", "product"))


def main(argv: Sequence[str]) -> int:
    """Print the status; the exit code is 1 when the plugin cannot be asked."""
    return status.main(argv, "nvdra-gpu-plugin", __version__, COLUMNS)
