# SPDX-License-Identifier: Apache-2.0
"""Which tests end or restart a process, found in the source of the tests and of their harness.

    python -m tests.steady.process_ends

A function ends a process if it sends a signal, restarts or reboots something, or calls a function
that does, itself or in a thread. Functions are found by their names in the test's file, in conftest
files, and in what the file imports of the harness, which errs towards too many. What a fixture or a
context manager does when it is left does not count: every test ends its processes then.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent.parent
HARNESS = ("testing/src/nvdra_testing",)
TESTS = (
    "packages/*/tests",
    "e2e/*/tests",
    "e2e/tests",
    "charts/tests",
    "testing/tests",
    "tests",
)
SIGNALS = frozenset({"kill", "killpg", "terminate", "send_signal", "pidfd_send_signal"})
RESTARTS = frozenset({"restart", "reboot", "kill"})
"""Words of a command of kubectl, the lab or systemctl."""
DRIVER_PODS = "driver_namespace"
"""Deleting a pod of this receiver ends a component; other pods are a test's own workload."""
HANDED_ON = frozenset({"to_thread", "submit", "partial"})
"""These call the function that is their first argument, now or later."""
GENERIC = frozenset({"run", "close", "wait", "start", "main", "__init__", "perform", "arrange"})
"""Methods of so many classes that their name says nothing."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Function:
    """A function of a test file or of the harness.

    Attributes:
        path: Its file.
        name: Its name.
        is_test: Whether pytest runs it.
        calls: The names of what it calls.
        why: How it ends a process itself; empty if it does not.
    """

    path: str
    name: str
    is_test: bool
    calls: set[str] = field(default_factory=set)
    why: str = ""

    @property
    def node(self) -> str:
        """The name by which pytest runs it."""
        return f"{self.path}::{self.name}"


def read(root: Path = ROOT) -> dict[str, str]:
    """The source of every test file and of the harness, by path."""
    folders = [root / each for each in HARNESS]
    folders += [found for each in TESTS for found in sorted(root.glob(each))]
    return {
        str(path.relative_to(root)): path.read_text()
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
    }


def tests(sources: Mapping[str, str]) -> list[str]:
    """Every test function."""
    return [
        f"{path}::{node.name}"
        for path, text in sources.items()
        if _is_test_file(path)
        for node in ast.parse(text).body
        if _is_test(node)
    ]


def find(sources: Mapping[str, str]) -> dict[str, str]:
    """The tests that end a process, with the chain of calls by which they do it."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    functions = list(_functions(trees))
    by_path: dict[str, dict[str, list[Function]]] = {}
    for each in functions:
        by_path.setdefault(each.path, {}).setdefault(each.name, []).append(each)
    visible = _visible(trees)
    has_changed = True
    while has_changed:
        has_changed = False
        for function in functions:
            if function.why:
                continue
            for name in sorted(function.calls - GENERIC):
                own = by_path[function.path].get(name)
                called = own or [
                    found
                    for path in visible[function.path]
                    for found in by_path.get(path, {}).get(name, ())
                ]
                if why := next((each.why for each in called if each.why), ""):
                    function.why, has_changed = f"{name} → {why}", True
                    break
    return {each.node: each.why for each in functions if each.is_test and each.why}


def _visible(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Path → the files of the harness that it imports, directly or not, and conftest files."""
    modules = {_module(path): path for path in trees if path.startswith(HARNESS)}
    direct = {
        path: {modules[name] for name in _imported(tree) if name in modules}
        for path, tree in trees.items()
    }
    above = [path for path in trees if path.endswith("conftest.py")]
    found: dict[str, list[str]] = {}
    for path in trees:
        conftests = [each for each in above if path.startswith(each.removesuffix("conftest.py"))]
        known, left = set(conftests), {path, *conftests}
        while left:
            left = set().union(*(direct[each] for each in left)) - known
            known |= left
        found[path] = sorted(known)
    return found


def _module(path: str) -> str:
    return path.partition("src/")[2].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _functions(trees: Mapping[str, ast.Module]) -> Iterator[Function]:
    """Functions and methods; what is defined inside a function is a part of it."""
    for path, tree in trees.items():
        for node in _definitions(tree.body):
            is_test = _is_test_file(path) and _is_test(node) and node in tree.body
            function = Function(path, node.name, is_test)
            for call in _calls(_entered(node.body)):
                for called in (call, *_handed_on(call)):
                    function.calls.add(_name(called))
                    function.why = function.why or _how(called)
            yield function


def _definitions(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _definitions(node.body)


def _is_test_file(path: str) -> bool:
    return Path(path).name.startswith("test_")


def _is_test(node: ast.stmt) -> TypeGuard[Definition]:
    return isinstance(node, Definition) and node.name.startswith("test_")


def _entered(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements up to the first one that yields."""
    for statement in body:
        yield statement
        if any(isinstance(each, ast.Yield) for each in ast.walk(statement)):
            return


def _calls(statements: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """All calls, but for those in `finally`."""
    for statement in statements:
        if isinstance(statement, ast.Call):
            yield statement
        for name, value in ast.iter_fields(statement):
            if name != "finalbody":
                children = value if isinstance(value, list) else [value]
                yield from _calls(each for each in children if isinstance(each, ast.AST))


def _handed_on(call: ast.Call) -> Iterator[ast.Call]:
    """The call that another makes: `to_thread(strike, row)` calls `strike(row)`."""
    if _name(call) in HANDED_ON and call.args:
        yield ast.Call(call.args[0], call.args[1:], call.keywords)


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _how(call: ast.Call) -> str:
    """How this call ends a process; empty if it does not."""
    name = _name(call)
    if name in SIGNALS:
        return name
    words = {each.value for each in call.args if isinstance(each, ast.Constant)}
    if found := words & RESTARTS:
        return f"{name} {min(map(str, found))}"
    if name == "delete" and "pod" in words and DRIVER_PODS in ast.unparse(call.func):
        return f"{name} pod"
    return ""


def main() -> int:
    """Print the tests."""
    found = find(read())
    for node, why in found.items():
        print(f"{node}  # {why}")
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
