# SPDX-License-Identifier: Apache-2.0
"""Finds the reasons that a program can raise, in its modules and the shared modules it imports.

A reason is always written as a member of `Reason`, so that the list is complete; `reasons_computed`
finds violations.
"""

import ast
import importlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

SHARED_PACKAGES = {"nvdra_api", "nvdra_runtime"}
DEFINING_MODULES = {"nvdra_api.errors", "nvdra_runtime.telemetry.reason_explanations"}
"""The modules that define and explain reasons but raise none."""


def modules(package: str) -> Mapping[str, ast.Module]:
    """The syntax trees of the modules that a program's `__main__` imports, by module name."""
    trees: dict[str, ast.Module] = {}
    waiting = deque([f"{package}.__main__"])
    while waiting:
        module = waiting.popleft()
        path = _source(module, package)
        if module in trees or module in DEFINING_MODULES or path is None:
            continue
        trees[module] = ast.parse(path.read_text())
        waiting += _imports(trees[module])
    return trees


def reasons_named(tree: ast.Module) -> Iterator[str]:
    """The members of Reason that a module names. Comparing with one counts like raising it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_reason(node.value):
            yield node.attr


def reasons_computed(trees: Mapping[str, ast.Module]) -> list[str]:
    """The places where a reason is computed from a value, as `module:line`."""
    return [
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and _is_computed(node)
    ]


def _source(module: str, package: str) -> Path | None:
    """The file of a module; None if it is not ours, or if the name is no module."""
    top, _, rest = module.partition(".")
    if top not in {*SHARED_PACKAGES, package}:
        return None
    root = Path(importlib.import_module(top).__path__[0])
    path = root.joinpath(*rest.split(".")) if rest else root
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_computed(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _is_reason(node.func)
    return isinstance(node, ast.Subscript) and _is_reason(node.value)


def _is_reason(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "Reason") or (
        isinstance(node, ast.Attribute) and node.attr == "Reason"
    )
