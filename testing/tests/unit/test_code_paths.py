# SPDX-License-Identifier: Apache-2.0
"""What a recording of executed functions counts to."""

from typing import Any

from nvdra_testing.code_paths import measurement

DOOR, NVML = measurement.DOOR[0], measurement.NVML_WORKER[0]


def function(file: str, name: str, first: int, last: int) -> dict[str, Any]:
    return {"file": file, "name": name, "first": first, "last": last}


def test_a_line_of_nested_functions_counts_once() -> None:
    outer, inner = function("a.py", "f", 1, 10), function("a.py", "f.g", 3, 5)
    other = function("b.py", "h", 7, 7)
    found = measurement.read({"functions": [outer, inner, other], "to_nvml": [other, inner]})
    assert found.lines == {"a.py": 10, "b.py": 1}
    assert found.line_count == 11
    assert found.chain == ("b.py:h", "a.py:f.g")


def test_the_grpc_door_and_the_worker_of_nvml_are_no_inner_files() -> None:
    functions = [function(file, "f", 1, 1) for file in (DOOR, "a.py", NVML)]
    found = measurement.read({"functions": functions, "to_nvml": []})
    assert found.inner_files == ("a.py",)
    assert found.text("GPU").splitlines()[0] == (
        "GPU: 3 files, 1 without gRPC and NVML's worker, 3 lines, 0 functions deep"
    )
