# SPDX-License-Identifier: Apache-2.0
"""Which failed operations say nothing new, so that a trace does not grow for weeks. Pure.

A domain whose daemon cannot start is tried twice a minute until the node is mended. The first
attempts show how it fails; after that only another failure, or a success, is exported.
Source: docs/reference/tracing.md, "Spans".
"""

from collections import OrderedDict
from typing import Final

from nvdra_api.ids import SpanID, TraceID

from nvdra_runtime.telemetry.spans import Failure

MAX_ALIKE: Final = 5
"""How many failures in a row of one operation are exported that have the same reason and text."""
_MAX_OPERATIONS: Final = 4096
"""For how many operations the last failure is known; a forgotten one is exported again."""

OperationKey = tuple[TraceID, str, SpanID | None]
"""The trace of an operation, its name and its parent."""


class RepeatedFailures:
    """The last failures of one process's operations."""

    def __init__(self) -> None:
        self._known: OrderedDict[OperationKey, tuple[tuple[str, str], int]] = OrderedDict()

    def is_repeating(self, key: OperationKey) -> bool:
        """Whether another failure like the last ones of this operation would say nothing new."""
        return key in self._known and self._known[key][1] >= MAX_ALIKE

    def note(self, key: OperationKey, failure: Failure | None) -> bool:
        """Note how an operation ended. Returns whether that says something new.

        Args:
            key: The operation.
            failure: Why it failed; None if it succeeded.
        """
        before, count = self._known.pop(key, (("", ""), 0))
        if failure is None:
            return True
        said = failure.reason, failure.message
        count = count + 1 if said == before else 1
        self._known[key] = said, count
        while len(self._known) > _MAX_OPERATIONS:
            self._known.popitem(last=False)
        return count <= MAX_ALIKE
