"""A metric's series by their labels, each looked up once.

`labels()` of prometheus_client takes a lock, makes texts of all values and checks them, at every
call; a prepare with its unprepare observes thirty series, always the same ones.
"""

from typing import Generic, Protocol, TypeVar

M = TypeVar("M", covariant=True)


class _Labelled(Protocol[M]):
    def labels(self, *values: str) -> M:
        """The series with these values."""
        ...


class Series(Generic[M]):
    """`Series(counter, "driver")("prepare").inc()` is `counter.labels("driver", "prepare").inc()`.

    For labels of few values only: every series that was ever asked for is kept, here as there.
    """

    def __init__(self, metric: _Labelled[M], *first: str) -> None:
        """`first` are values that all of its series share: the driver, the node."""
        self._metric = metric
        self._first = first
        self._known: dict[tuple[str, ...], M] = {}

    def __call__(self, *values: str) -> M:
        """The series whose labels have these values, after the shared ones."""
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = self._metric.labels(*self._first, *values)
        return found
