# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that the reference driver has left on the node.

The plugin takes its claims over from the kubelet's own checkpoint. This one is kept for a user who
goes back while such a claim is prepared, and removed afterwards: the reference driver believes it
until the next boot, and would refuse channel 0 because of a claim that is long gone.
The functions block: call them on the thread for files.

Source: docs/reference/compute-domain.md, "Checkpoint".
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from nvdra_api import json_text
from nvdra_api.ids import ClaimUID
from nvdra_api.meta import JsonObject
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

_NAME: Final = "checkpoint.json"


class ReferenceCheckpoint:
    """The file `checkpoint.json` in the plugin's directory."""

    def __init__(self, plugin_dir: Path) -> None:
        self._path = plugin_dir / _NAME

    def remove_unless_used(self, prepared: Collection[ClaimUID]) -> bool:
        """Remove the checkpoint if none of its claims is `prepared`; return whether it is gone.

        One whose claims cannot be read is kept while any claim is prepared.

        Raises:
            OSError: The file system refused.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return True
        claims = _claims(content)
        if prepared if claims is None else claims.intersection(prepared):
            return False
        self._path.unlink()
        LOG.info("Removed the checkpoint of another driver", file=str(self._path))
        return True


def _claims(content: bytes) -> set[str] | None:
    """The UIDs of the claims in a checkpoint; None if it is not one of the known versions."""
    try:
        document: JsonObject = json_text.parse(content)
        versions = [document[version] for version in ("v1", "v2") if version in document]
        found = {uid for version in versions for uid in version.get("preparedClaims", {})}
    except (ValueError, TypeError, AttributeError):
        return None
    return found if versions else None
