"""Which reasons a program's code can raise: its modules, and those of the API package they import.

A reason is always written out as a member of `Reason`, so that a list taken from the source is
whole; `computed` finds what would make it less.
"""

import ast
import importlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

API = "nvdra_api"
TELLING = {"nvdra_api.types.errors", "nvdra_api.types.reasons"}
"""Modules that define and explain reasons, and raise none."""


def modules(package: str) -> Mapping[str, ast.Module]:
    """What a program is made of: what its `__main__` imports, and what that imports, by name."""
    trees: dict[str, ast.Module] = {}
    waiting = deque([f"{package}.__main__"])
    while waiting:
        module = waiting.popleft()
        path = _source(module, package)
        if module in trees or module in TELLING or path is None:
            continue
        trees[module] = ast.parse(path.read_text())
        waiting += _imports(trees[module])
    return trees


def named(tree: ast.Module) -> Iterator[str]:
    """Members of Reason that a module names; to compare with one counts like raising it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_reason(node.value):
            yield node.attr


def computed(trees: Mapping[str, ast.Module]) -> list[str]:
    """Where a reason is made from a value, so that nobody can read which: `module:line`."""
    return [
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and _is_computed(node)
    ]


def _source(module: str, package: str) -> Path | None:
    """Its file; None for what is not ours, or is a name in a module rather than one."""
    top, _, rest = module.partition(".")
    if top not in (API, package):
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
