# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.own_code`: what a library costs where nvdra has code of its own.

Each pair runs in this process or in fresh ones, in turn, so that a busy machine slows both. The
figures are those of docs/decisions/own-code.md.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import yaml
from kubernetes.client import ApiClient
from nvdra_api.ids import NodeName
from nvdra_cdi import codec
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from opentelemetry.sdk.trace import TracerProvider

ROUNDS = 7
SLICES, DEVICES = 40, 32


def _slices() -> bytes:
    device = {
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-0f7c2d3e-0000-4000-8000-000000000000"},
            "architecture": {"string": "Hopper"},
            "driverVersion": {"version": "580.65.6"},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    }
    items = [
        {
            "metadata": {"name": f"slice-{number}", "uid": f"uid-{number}", "resourceVersion": "1"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": f"node-{number}",
                "pool": {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{index}", **device} for index in range(DEVICES)],
            },
        }
        for number in range(SLICES)
    ]
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


def _spec() -> Spec:
    nodes = tuple(DeviceNode(f"/dev/nvidia{index}") for index in range(6))
    devices = [Device(f"gpu-{index}", ContainerEdits(device_nodes=nodes)) for index in range(16)]
    return Spec(version="0.5.0", kind="k8s.gpu.nvidia.com/device", devices=tuple(devices))


def _seconds(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def _in_turn(ours: Callable[[], object], theirs: Callable[[], object], count: int) -> str:
    pairs = [(_seconds(ours, count), _seconds(theirs, count)) for _ in range(ROUNDS)]
    own, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    return f"{own * 1e6:10.1f} µs {other * 1e6:10.1f} µs  x {ratio:.1f}"


def _start(code: str) -> tuple[float, float]:
    """Processor seconds of a fresh interpreter that runs this code, and its resident MiB."""
    report = "\nprint(time.process_time(), int(open('/proc/self/statm').read().split()[1]) / 256)"
    output = subprocess.run(
        [sys.executable, "-c", f"import time\n{code}{report}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seconds, mib = output.split()
    return float(seconds), float(mib)


def _starts(ours: str, theirs: str) -> str:
    own, other = zip(*((_start(ours), _start(theirs)) for _ in range(ROUNDS)), strict=True)
    return "   ".join(
        f"{_median(0, runs):.2f} s {_median(1, runs):.0f} MiB" for runs in (own, other)
    )


def _median(column: int, runs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(run[column] for run in runs)


def _spans() -> tuple[Callable[[], object], Callable[[], object]]:
    clock = SystemClock()
    telemetry: Telemetry[Any] = Telemetry(
        clock, PluginMetrics(driver="d", node=NodeName("n")), TraceRecorder()
    )
    tracer = TracerProvider().get_tracer("bench")

    def own() -> None:
        with telemetry.step("bench", {"key": "value"}):
            pass

    def sdk() -> None:
        with tracer.start_as_current_span("bench", attributes={"key": "value"}):
            pass

    return own, sdk


def main() -> None:
    """Print the table."""
    data, spec = _slices(), _spec()
    text_of_slices, deserialize = data.decode(), ApiClient().deserialize

    def models() -> object:
        return deserialize(text_of_slices, "V1ResourceSliceList", "application/json")

    text = codec.dumps(spec, "yaml")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    document = yaml.load(text, loader)
    print(f"{datetime.now(UTC):%Y-%m-%d}, ours, the library's, the library's share of ours")
    print(
        f"read {SLICES} slices of {DEVICES} devices ", _in_turn(lambda: json.loads(data), models, 1)
    )
    print("a span                          ", _in_turn(*_spans(), 2000))
    print(
        "write a CDI spec of 16 devices  ",
        _in_turn(lambda: codec.dumps(spec, "yaml"), lambda: yaml.dump(document, Dumper=dumper), 5),
    )
    print(
        "read a CDI spec of 16 devices   ",
        _in_turn(lambda: codec.loads(text), lambda: yaml.load(text, loader), 5),
    )
    print(
        "start with the API client       ",
        _starts("import nvdra_runtime.kube.client", "import kubernetes.aio.client"),
    )


if __name__ == "__main__":
    main()
