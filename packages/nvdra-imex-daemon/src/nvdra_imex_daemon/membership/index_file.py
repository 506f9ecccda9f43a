# SPDX-License-Identifier: Apache-2.0
"""A file with the last index of this node's daemon, which the next daemon takes again.

A daemon that stops removes its entry from the clique and with it the record of its index. Daemons
that are replaced at the same time would come back with other indexes, and IMEX's peers under other
names. The domain's directory on the node exists as long as the node has a workload of the domain.
Source: docs/reference/imex.md, "DNS names": indexes are stable.
"""

import json
from pathlib import Path

from nvdra_api import json_text
from nvdra_api.ids import CliqueID
from nvdra_runtime.node.files import write_atomic
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)


class IndexFile:
    """The file. Its methods block and are called on the thread "files"."""

    def __init__(self, path: Path, clique: CliqueID) -> None:
        self._path = path
        self._clique = clique

    def read(self) -> int | None:
        """The index that the node's last daemon had in this clique; None if it is not known.

        The index may be used by another node by now.
        """
        try:
            stored = json_text.parse(self._path.read_bytes(), json_text.MAX_FILE_BYTES)
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("cliqueID") != self._clique:
            return None
        index = stored.get("index")
        return index if isinstance(index, int) and not isinstance(index, bool) else None

    def write(self, index: int) -> None:
        """Store our index. If that fails, the next daemon takes any free index."""
        text = json.dumps({"cliqueID": self._clique, "index": index})
        try:
            write_atomic(self._path, text.encode())
        except OSError as error:
            LOG.warning("Cannot store our index for the next daemon", error=str(error))
