# SPDX-License-Identifier: Apache-2.0
"""A cache of a metric's series by their label values.

`labels()` of prometheus_client takes a lock and converts and checks all values at every call. A
prepare with its unprepare observes thirty series, always the same ones.
"""

from typing import Generic, Protocol, TypeVar

M = TypeVar("M", covariant=True)


class _LabeledMetric(Protocol[M]):
    def labels(self, *values: str) -> M:
        """The series with these values."""
        ...


class LabeledSeries(Generic[M]):
    """`Series(counter, "driver")("prepare").inc()` is `counter.labels("driver", "prepare").inc()`.

    It is for labels with few values only: every series stays in memory, as in prometheus_client.
    """

    def __init__(self, metric: _LabeledMetric[M], *first: str) -> None:
        """`first` are the label values that all series share, such as the driver and the node."""
        self._metric = metric
        self._first = first
        self._known: dict[tuple[str, ...], M] = {}

    def __call__(self, *values: str) -> M:
        """The series with these label values after the shared ones."""
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = self._metric.labels(*self._first, *values)
        return found
