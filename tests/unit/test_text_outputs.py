# SPDX-License-Identifier: Apache-2.0
"""Text that people read leaves by few doors, each of which escapes what a terminal would obey."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"
SOURCES = {
    str(path.relative_to(PACKAGES)).split("/src/")[1]: ast.parse(path.read_text())
    for path in PACKAGES.glob("*/src/**/*.py")
    if "_generated" not in path.parts
}
ESCAPING = {
    "nvdra_runtime/process/output.py",
    "nvdra_runtime/http/responses.py",
    "nvdra_runtime/telemetry/logs.py",
    "nvdra_migrate/command.py",
    "nvdra_webhook/serving/exchange.py",
}
"""The doors: each uses `nvdra_api.terminal_text`."""
WITHOUT_FOREIGN_TEXT = {
    "nvdra_runtime/http/metrics_endpoint.py": "prometheus_client escapes labels",
    "nvdra_runtime/process/kill_command.py": "its own arguments",
    "nvdra_runtime/process/stack_dump.py": "paths of its own",
    "nvdra_cdi/cli/main.py": "files that only root writes; the package depends on none of ours",
    "nvdra_cdi/cli/monitor_command.py": "the same",
}
STREAMS = ("sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines")
RESPONSES = ("web.Response", "web.json_response", "web.StreamResponse", "web.HTTP")


def writes(tree: ast.Module) -> Iterator[str]:
    """What a module calls that shows text to people."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in (*STREAMS, "print") or called.startswith(RESPONSES):
                yield called


def test_only_the_doors_write_text() -> None:
    found = {file: sorted(set(writes(tree))) for file, tree in SOURCES.items()}
    others = {
        file: calls
        for file, calls in found.items()
        if calls and file not in ESCAPING and file not in WITHOUT_FOREIGN_TEXT
    }
    assert others == {}


def test_every_door_escapes() -> None:
    for file in ESCAPING:
        assert "terminal_text" in ast.unparse(SOURCES[file]), file


def test_the_lists_name_no_module_that_writes_nothing() -> None:
    assert [file for file in WITHOUT_FOREIGN_TEXT if not list(writes(SOURCES[file]))] == []
