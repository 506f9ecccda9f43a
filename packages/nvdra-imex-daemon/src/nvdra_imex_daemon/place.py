"""The index that this node's daemon had last, left where its successor finds it.

A daemon that is told to stop takes its entry out of the clique, and with it goes what the clique
knew; daemons that are replaced at the same time would come back in any order, and IMEX's peers
under other names. The domain's directory on the node outlives them all while a workload of the
domain is there. Source: spec/compute-domain.md §8.5: places are stable.
"""

import json
from pathlib import Path

from nvdra_api.runtime.node.files import write_atomic
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.ids import CliqueID

LOG = logs.logger(__name__)


class Place:
    """The file; it blocks, and is used on the thread "files"."""

    def __init__(self, path: Path, clique: CliqueID) -> None:
        self._path = path
        self._clique = clique

    def last(self) -> int | None:
        """The index that a predecessor had in the same clique; None where nobody can say.

        Whether it may be taken again, the clique decides.
        """
        try:
            known = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(known, dict) or known.get("cliqueID") != self._clique:
            return None
        index = known.get("index")
        return index if isinstance(index, int) and not isinstance(index, bool) else None

    def keep(self, index: int) -> None:
        """Leave it to a successor; where the disk refuses, that one takes what is free."""
        text = json.dumps({"cliqueID": self._clique, "index": index})
        try:
            write_atomic(self._path, text.encode())
        except OSError as error:
            LOG.warning("Our index is not kept for a successor", error=str(error))
