# SPDX-License-Identifier: Apache-2.0
"""A telemetry whose time stands still until a test moves it, and the log it writes."""

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
        self.seconds = 100.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics(driver="gpu.nvidia.com", node=NodeName("node-a"))


@pytest.fixture
def telemetry(clock: Clock, metrics: PluginMetrics) -> Telemetry:
    return Telemetry(clock, metrics, TraceRecorder())


@pytest.fixture
def ref() -> ClaimRef:
    return ClaimRef("default", "train", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))


@pytest.fixture
def configured() -> Iterator[Callable[..., tuple[logs.ConfiguredLogging, io.StringIO]]]:
    """Sets up the log as a component does, into memory, and takes it down again."""
    made: list[logs.ConfiguredLogging] = []

    def configure(
        verbosity: int, format_: logs.LogFormat = logs.LogFormat.JSON
    ) -> tuple[logs.ConfiguredLogging, io.StringIO]:
        stream = io.StringIO()
        made.append(logs.configure(format_, verbosity, "nvdra-test", stream))
        return made[-1], stream

    yield configure
    for logging_ in made:
        logging_.close()


@pytest.fixture
def records(
    configured: Callable[..., tuple[logs.ConfiguredLogging, io.StringIO]],
) -> Callable[[], list[dict[str, Any]]]:
    """What has been logged so far, at verbosity 4, as JSON gives it back."""
    _, stream = configured(4)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
