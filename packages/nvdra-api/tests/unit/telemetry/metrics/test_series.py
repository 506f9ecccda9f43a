# SPDX-License-Identifier: Apache-2.0
"""Series of a metric, each looked up once."""

from nvdra_runtime.telemetry.metrics.series import LabeledSeries
from prometheus_client import CollectorRegistry, Counter


class Metric:
    """A metric whose series are their label values; it notes which ones it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def labels(self, *values: str) -> list[str]:
        self.asked.append(values)
        return list(values)


def test_the_shared_label_values_come_before_the_others() -> None:
    registry = CollectorRegistry()
    counter = Counter("calls", "Calls.", ["driver", "operation"], registry=registry)
    series = LabeledSeries(counter, "d")
    series("prepare").inc()
    series("unprepare").inc(2)
    series("prepare").inc()
    value = registry.get_sample_value
    assert value("calls_total", {"driver": "d", "operation": "prepare"}) == 2
    assert value("calls_total", {"driver": "d", "operation": "unprepare"}) == 2


def test_the_metric_is_asked_once_for_each_series() -> None:
    metric = Metric()
    series = LabeledSeries(metric, "d")
    first = series("a", "b")
    assert series("a", "b") is first
    assert series("b", "a") == ["d", "b", "a"]
    assert metric.asked == [("d", "a", "b"), ("d", "b", "a")]


def test_a_metric_may_have_shared_labels_only_or_none_of_them() -> None:
    assert LabeledSeries(Metric(), "d", "n")() == ["d", "n"]
    assert LabeledSeries(Metric())("prepare") == ["prepare"]


def test_two_caches_of_one_metric_do_not_share_series() -> None:
    metric = Metric()
    assert LabeledSeries(metric, "d")("a") != LabeledSeries(metric, "e")("a")
