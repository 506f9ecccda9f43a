# SPDX-License-Identifier: Apache-2.0
"""The specs of the claim templates that domains use, which the informer does not receive.

Any user may put a domain's label on templates of a megabyte, of which the controller would receive
and parse every change. Of a template that a domain uses the spec is read once, because nothing can
change it. Source: docs/decisions/cd-controller.md.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.informer_cache import object_key

from nvdra_cd_controller.kept_parts import shared

_FEWEST: Final = 256
"""Below this many specs none is looked for that is no longer of use."""


class _Known(NamedTuple):
    uid: str
    spec: JsonObject


class TemplateSpecs:
    """What has been read of templates, as v1."""

    def __init__(self, find: Callable[[str], JsonObject | None]) -> None:
        """Know no spec.

        Args:
            find: Returns the metadata of a template by its key, if the template exists.
        """
        self._find = find
        self._known: dict[str, _Known] = {}
        self._last: JsonObject = {}
        self._sweep_at = _FEWEST

    def record(self, template: JsonObject) -> None:
        """Remember the spec of a template that was read or written as a whole."""
        self._last = shared(template["spec"], self._last)
        self._known[object_key(template)] = _Known(template["metadata"]["uid"], self._last)
        if len(self._known) > self._sweep_at:
            self._sweep()

    def get(self, template: JsonObject) -> JsonObject | None:
        """The spec of a template, from its metadata; None if it has not been read."""
        known = self._known.get(object_key(template))
        return known.spec if known and known.uid == template["metadata"]["uid"] else None

    def _sweep(self) -> None:
        """Forget templates that do not exist. The next time is when there are twice as many."""
        found = {key: (self._find(key) or {}).get("metadata", {}) for key in self._known}
        self._known = {
            key: known for key, known in self._known.items() if found[key].get("uid") == known.uid
        }
        self._sweep_at = max(_FEWEST, 2 * len(self._known))
