# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's clique in the plugin's directory, for the next process of this boot.

So a restart changes nothing while GPUs cannot be asked: they are lost, are registered again after a
reset, or NVML is released. A reboot may bring another rack's fabric, and a different policy another
answer; then what was kept does not count.
"""

from pathlib import Path
from typing import Final

from nvdra_api.ids import CliqueID
from nvdra_runtime.node import files
from nvdra_runtime.node.host import Host
from nvdra_runtime.telemetry import logs
from pydantic import BaseModel

from nvdra_cd_plugin.fabric.nvml_query import FabricPolicy

LOG = logs.logger(__name__)

_NAME: Final = "clique.json"


class _Document(BaseModel):
    boot_id: str
    policy: FabricPolicy
    clique: CliqueID


class KnownClique:
    """The file. Its methods block: call them on the thread for files."""

    def __init__(self, plugin_dir: Path, host: Host, policy: FabricPolicy) -> None:
        """Create it without reading. `policy` is how this process checks the fabric."""
        self._path = plugin_dir / _NAME
        self._host = host
        self._policy = policy

    def read(self) -> CliqueID | None:
        """The clique that this boot's former process knew; None if there was none."""
        try:
            boot_id = self._host.boot_id()
            document = _Document.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            LOG.warning("Cannot read the clique", file=str(self._path), error=str(error))
            return None
        is_same = document.boot_id == boot_id and document.policy == self._policy
        return document.clique if is_same else None

    def write(self, clique: CliqueID) -> None:
        """Write it to the disk. Without the file a restart has to ask the GPUs, so it may fail."""
        try:
            document = _Document(boot_id=self._host.boot_id(), policy=self._policy, clique=clique)
            files.write_atomic(self._path, document.model_dump_json().encode())
        except OSError as error:
            LOG.warning("Cannot write the clique", file=str(self._path), error=str(error))
