# SPDX-License-Identifier: Apache-2.0
"""Modules, functions and constructors have a size at which each can be read at once.

Where a limit is exceeded, look for the noun that a module hides, for the step that a function
contains, and for a parameter or a layer that is not needed.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGES: Final = Path(__file__).parents[2] / "packages"

MAX_MODULE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60
MAX_ARGUMENTS: Final = 8
"""Of the constructor of a class that has collaborators. Settings, API types and records have as
many fields as what they describe."""

EXCEPTIONS: Final = frozenset(
    {
        "nvdra_runtime/kubeletplugin/plugin_context.py::PluginContext",
        "nvdra_runtime/kubeletplugin/wiring.py::Driver",
        "nvdra_runtime/telemetry/reason_explanations.py",
    }
)
"""What exceeded a limit when this test was written. The list only becomes shorter.

`reason_explanations` is a table: an entry for each reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> dict[str, str]:
    """The text of every module that is not generated, by its path below `src`."""
    return {
        path.as_posix().partition("/src/")[2]: path.read_text()
        for path in sorted(PACKAGES.glob("*/src/**/*.py"))
        if "_pb2" not in path.name
    }


def functions(tree: ast.AST) -> Iterator[tuple[str, Function]]:
    """All functions with the names of the classes and functions around them."""
    rest: list[tuple[str, ast.AST]] = [("", tree)]
    while rest:
        around, node = rest.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef):
                name = f"{around}.{child.name}".removeprefix(".")
                rest.append((name, child))
                if isinstance(child, Function):
                    yield name, child
            elif isinstance(child, ast.stmt):
                rest.append((around, child))


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def constructor(found: ast.ClassDef) -> Function | None:
    methods = (node for node in found.body if isinstance(node, Function))
    return next((method for method in methods if method.name == "__init__"), None)


def has_effects(found: ast.ClassDef) -> bool:
    """Whether objects of the class do something, unlike a record: it builds itself, or waits."""
    waits = any(isinstance(node, ast.AsyncFunctionDef) for node in found.body)
    is_error = any("Error" in ast.unparse(base) for base in found.bases)
    return waits or (constructor(found) is not None and not is_error)


def fields(found: ast.ClassDef) -> list[ast.AnnAssign]:
    """The fields of a dataclass or NamedTuple, which are the arguments of its constructor."""
    kinds = [*map(ast.unparse, found.decorator_list), *map(ast.unparse, found.bases)]
    if not any("dataclass" in kind or kind == "NamedTuple" for kind in kinds):
        return []
    return [node for node in found.body if isinstance(node, ast.AnnAssign)]


def argument_count(found: ast.ClassDef, collaborators: Iterable[str]) -> int:
    """The arguments of a constructor; 0 of a record."""
    method = constructor(found)
    if method is not None:
        given = method.args
        return len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
    names = {
        node.id
        for field in fields(found)
        for node in ast.walk(field.annotation)
        if isinstance(node, ast.Name)
    }
    return len(fields(found)) if names & {"Callable", *collaborators} else 0


def exceeding(modules: dict[str, str]) -> dict[str, int]:
    """What exceeds a limit, `<module>` or `<module>::<name>`, with its size."""
    trees = {name: ast.parse(text) for name, text in modules.items()}
    collaborators = {
        found.name for tree in trees.values() for found in classes(tree) if has_effects(found)
    }
    sizes: dict[str, tuple[int, int]] = {
        name: (len(text.splitlines()), MAX_MODULE_LINES) for name, text in modules.items()
    }
    for module, tree in trees.items():
        for name, function in functions(tree):
            lines = (function.end_lineno or 0) - function.lineno + 1
            sizes[f"{module}::{name}"] = (lines, MAX_FUNCTION_LINES)
        for found in classes(tree):
            count = argument_count(found, collaborators)
            sizes[f"{module}::{found.name}"] = (count, MAX_ARGUMENTS)
    return {name: size for name, (size, limit) in sizes.items() if size > limit}


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return exceeding(sources())


def test_nothing_new_exceeds_a_limit(found: dict[str, int]) -> None:
    assert {name: size for name, size in found.items() if name not in EXCEPTIONS} == {}


def test_each_exception_is_still_needed(found: dict[str, int]) -> None:
    assert EXCEPTIONS - found.keys() == set()


def test_modules_functions_and_constructors_are_measured() -> None:
    long = "\n".join(["def long() -> None:", *["    pass"] * 60])
    deep = "class Deep:\n    async def run(self) -> None:\n" + "        pass\n" * 60
    nine = ", ".join(f"a{number}: int" for number in range(9))
    made = f"class Made:\n    def __init__(self, {nine}) -> None: ...\n"
    names = "\n".join(f"    a{number}: int" for number in range(8))
    parts = f"@dataclass(frozen=True)\nclass Parts:\n{names}\n    deep: Deep\n"
    record = f"@dataclass(frozen=True)\nclass Record:\n{names}\n    more: int\n"
    text = "\n".join((long, deep, made, parts, record))
    assert exceeding({"a.py": text, "b.py": "\n" * 401}) == {
        "b.py": 401,
        "a.py::long": 61,
        "a.py::Deep.run": 61,
        "a.py::Made": 9,
        "a.py::Parts": 9,
    }
