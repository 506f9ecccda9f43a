# SPDX-License-Identifier: Apache-2.0
"""Facts are fields of a log record, which become JSON, and never part of its message."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"
SOURCES = {
    path: ast.parse(path.read_text())
    for path in PACKAGES.glob("*/src/**/*.py")
    if "_generated" not in path.parts
}
STANDARD = {
    "nvdra_runtime/process/log_records.py",  # the one that the others log with
    "nvdra_runtime/telemetry/logs.py",
    # Quieten other libraries.
    "nvdra_runtime/telemetry/export/metric_export.py",
    "nvdra_runtime/telemetry/export/span_export.py",
}
LOG_METHODS = {"info", "warning", "error", "failure", "v"}


def loggers(tree: ast.Module) -> bool:
    """Whether a module creates a logger of the standard library."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "getLogger" for node in ast.walk(tree)
    )


def messages(tree: ast.Module) -> Iterator[str]:
    """The messages that a module's LOG gets as text."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOG_METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "LOG"
        ):
            yield from (
                each.value
                for each in node.args
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def test_only_the_library_of_cdi_specs_logs_as_any_library_does() -> None:
    found = {str(path).partition("/src/")[2] for path, tree in SOURCES.items() if loggers(tree)}
    assert {name for name in found if not name.startswith("nvdra_cdi/")} == STANDARD


def test_a_message_is_a_sentence_without_the_facts() -> None:
    found = [message for tree in SOURCES.values() for message in messages(tree)]
    assert len(found) > 100
    wrong = [each for each in found if "%" in each or "=" in each or each[:1].islower()]
    assert [each for each in wrong if not each.startswith("nvidia-imex")] == []
