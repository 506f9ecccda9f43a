# SPDX-License-Identifier: Apache-2.0
"""The duration of each step of a prepare, from the plugin's traces."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nvdra_testing.node.plugin import PluginProcess

PREPARE = "prepare"


def medians_ms(process: PluginProcess, uids: Iterable[str]) -> dict[str, float]:
    """Median of each step of these claims' first prepares, and of `prepare` itself, in ms.

    The caller also spends time on gRPC at both ends.
    """
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for uid in uids:
        for name, milliseconds in _durations(process.trace(uid)).items():
            seen[name].append(milliseconds)
    return {name: round(statistics.median(values), 3) for name, values in seen.items()}


def _durations(trace: Mapping[str, Any]) -> dict[str, float]:
    """Span name → milliseconds, of the first `prepare` and its children, in order."""
    prepare = next(span for span in _all(trace["spans"]) if span["name"] == PREPARE)
    return {each["name"]: each["duration_ms"] for each in (prepare, *prepare["children"])}


def _all(spans: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for span in spans:
        yield span
        yield from _all(span["children"])
