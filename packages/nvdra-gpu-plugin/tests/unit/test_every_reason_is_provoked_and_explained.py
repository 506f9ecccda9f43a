"""The list of reasons is taken from the code: each has a test that brings it about, and a page."""

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import nvdra_api
import nvdra_gpu_plugin
import provoking
from nvdra_api.types.errors import Reason
from nvdra_api.types.reasons import EXPLANATIONS

from scripts import document_reasons

OURS = ("nvdra_gpu_plugin", "nvdra_api")
TELLING = {"nvdra_api.types.errors", "nvdra_api.types.reasons"}
"""Modules that define and explain reasons, and raise none."""


def test_every_reason_that_the_driver_can_raise_is_brought_about_by_a_test() -> None:
    raised = {name for tree in _driver().values() for name in _named(tree)}
    provoked = {reason.name for reason in provoking.PROVOCATIONS}
    assert raised - provoked == set(), "add a provocation to e2e/harness/provoking.py"
    assert provoked - raised == set(), "nothing in the driver raises this any more"


def test_a_reason_is_always_written_out_so_that_the_list_is_whole() -> None:
    computed = [
        f"{module}:{node.lineno}"
        for module, tree in _driver().items()
        for node in ast.walk(tree)
        if _is_computed(node)
    ]
    assert computed == []


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)
    for explanation in EXPLANATIONS.values():
        assert explanation.check
        assert explanation.remedy


def test_the_page_says_what_the_code_says() -> None:
    stale = "docs/reasons.md is stale: python scripts/document_reasons.py"
    assert document_reasons.PAGE.read_text() == document_reasons.page(), stale


def _driver() -> dict[str, ast.Module]:
    """The modules that the plugin is made of: what `__main__` imports, and what that imports."""
    trees: dict[str, ast.Module] = {}
    waiting = deque(["nvdra_gpu_plugin.__main__"])
    while waiting:
        module = waiting.popleft()
        path = _source(module)
        if module in trees or module in TELLING or path is None:
            continue
        trees[module] = ast.parse(path.read_text())
        waiting += _imports(trees[module])
    assert len(trees) > 60
    return trees


def _source(module: str) -> Path | None:
    """Its file; None for what is not ours, or is a name in a module rather than one."""
    package, _, rest = module.partition(".")
    if package not in OURS:
        return None
    root = Path((nvdra_api if package == "nvdra_api" else nvdra_gpu_plugin).__path__[0])
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


def _named(tree: ast.Module) -> Iterator[str]:
    """Members of Reason that a module names; to compare with one counts like raising it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_reason(node.value):
            yield node.attr


def _is_computed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _is_reason(node.func)
    return isinstance(node, ast.Subscript) and _is_reason(node.value)


def _is_reason(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "Reason") or (
        isinstance(node, ast.Attribute) and node.attr == "Reason"
    )
